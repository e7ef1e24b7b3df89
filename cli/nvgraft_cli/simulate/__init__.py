"""GPU hosts that exist only as a document: stub libraries, device nodes, a stand-in NVML, and a
namespace to run in.

Here are ``nvgraft simulate`` and the demonstration that runs on such a host.
Answering questions about a simulated host is the other commands' work.
"""
