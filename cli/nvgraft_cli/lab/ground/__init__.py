"""What the lab and its lessons share: the node, its cgroups, bundles, and the learner's lines."""
