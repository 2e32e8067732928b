"""What the build takes from outside of Bazel.

Both repositories ask the Makefile, which is where the project's flags and its way to
the vendored tree are written down, and do so anew when one of _WATCHED changes or, for
the vendored tree, its list of packages or the seam.
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

def _lines(text):
    return [line for line in text.split("\n") if line and line[0] != "#"]

def _seam_files(rctx):
    targets = rctx.read(rctx.path(Label("@tpuvisor//seam:targets.txt")))
    return [
        rctx.path(Label("@tpuvisor//seam:_overlay/" + line.split(" ")[0]))
        for line in _lines(targets)
    ]

def _own_imports(rctx, files):
    """The targets of this module that Go files import."""
    module = _lines(rctx.read(_root(rctx).get_child("go.mod")))[0][len("module "):]
    targets = {}
    for file in files:
        for line in rctx.read(file).split("\n"):
            words = line.split('"')
            if len(words) == 3 and words[1].startswith(module + "/"):
                targets["//" + words[1][len(module + "/"):]] = True
    return sorted(targets)

def _vendor_impl(rctx):
    # First, since Bazel begins anew for each file that it has not looked at yet.
    seam_deps = _own_imports(rctx, _seam_files(rctx))
    _run(rctx, ["make", "-s", "seam"])
    modules_txt = rctx.path(Label("@tpuvisor//:vendor/modules.txt"))
    tree = modules_txt.dirname
    rctx.symlink(tree, "tree")
    rctx.file("seam.bzl", "SEAM_DEPS = %r\n" % seam_deps)
    rctx.file("BUILD.bazel", "\n".join([
        'load("@tpuvisor//bazel:vendored.bzl", "vendored_package")',
        'package(default_visibility = ["//visibility:public"])',
        'exports_files(["tree"])',
    ] + [
        "vendored_package(name = %r)" % package
        for package in _lines(rctx.read(modules_txt))
    ]) + "\n")

vendor = repository_rule(
    implementation = _vendor_impl,
    doc = "The vendored tree, one source directory, its packages by their import paths, and what the seam imports of ours.",
    environ = ["PATH"],
    local = True,
)
