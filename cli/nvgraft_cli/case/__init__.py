"""A case to answer about: a host, a container (bundle, root file system, image archive), and the
plan for the two.

Every command that plans takes its case from here, so that all of them answer about the same thing.
Answers, their wording and the command line do not belong here.
"""
