"""Packages as dependencies."""

GoInfo = provider(
    "A Go package.",
    fields = {"srcs": "depset of Files: its sources, and those of what it imports from this module"},
)

def _vendored_package_impl(_):
    return [GoInfo(srcs = depset())]

vendored_package = rule(
    implementation = _vendored_package_impl,
    doc = "A package of another module. It stands for nothing but its name: the vendored tree is an input of every action as a whole.",
)
