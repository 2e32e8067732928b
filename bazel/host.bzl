"""What the build takes from outside of Bazel.

Both repositories ask the Makefile, which is where the project's flags and its way to
the vendored tree are written down, and do so anew when one of _WATCHED changes or, for
the vendored tree, its list of packages.
"""

_WATCHED = [
    "Makefile",
    "VERSION",
    "go.mod",
    "go.sum",
]

def _run(rctx, args):
    program = rctx.which(args[0])
    if not program:
        fail("no %s command on PATH" % args[0])
    result = rctx.execute(
        [program] + args[1:],
        # Bazel may have been started by make: this one is not a part of it.
        environment = {"MAKEFLAGS": "", "MAKELEVEL": "", "GOTOOLCHAIN": "local"},
        timeout = 1200,
        working_directory = str(_root(rctx)),
    )
    if result.return_code:
        fail("%s: %s%s" % (" ".join(args), result.stdout, result.stderr))
    return result.stdout

def _root(rctx):
    files = [rctx.path(Label("@tpuvisor//:" + name)) for name in _WATCHED]
    return files[0].dirname

def _host_impl(rctx):
    version, goroot, modcache = _run(rctx, ["go", "env", "GOVERSION", "GOROOT", "GOMODCACHE"]).strip().split("\n")

    # The generators that are run by tests come from there, and a test has no network.
    _run(rctx, ["go", "-C", "tools", "list", "-deps", "./genproto", "google.golang.org/protobuf/cmd/protoc-gen-go"])
    rctx.file("BUILD.bazel", "")
    rctx.file("settings.bzl", """\
GO = %r
GO_VERSION = %r
GOROOT = %r
GOMODCACHE = %r
""" % (goroot + "/bin/go", version, goroot, modcache) + _run(rctx, ["make", "-s", "bazel-settings"]))

host = repository_rule(
    implementation = _host_impl,
    configure = True,
    doc = "The go command, and as settings.bzl the Makefile's settings.",
    environ = ["PATH"],
    local = True,
)

def _packages(modules_txt):
    """The import paths in a vendor/modules.txt, which has them on lines of their own."""
    return [line for line in modules_txt.split("\n") if line and line[0] != "#"]

def _vendor_impl(rctx):
    _run(rctx, ["make", "-s", "seam"])
    modules_txt = rctx.path(Label("@tpuvisor//:vendor/modules.txt"))
    tree = modules_txt.dirname
    rctx.symlink(tree, "tree")
    rctx.file("BUILD.bazel", "\n".join([
        'load("@tpuvisor//bazel:vendored.bzl", "vendored_package")',
        'package(default_visibility = ["//visibility:public"])',
        'exports_files(["tree"])',
    ] + [
        "vendored_package(name = %r)" % package
        for package in _packages(rctx.read(modules_txt))
    ]) + "\n")

vendor = repository_rule(
    implementation = _vendor_impl,
    doc = "The vendored tree, one source directory, and its packages by their import paths.",
    environ = ["PATH"],
    local = True,
)
