"""go_library, go_binary and go_test, built by the host's go command.

They have the names and attributes of rules_go's, so that Gazelle writes them. It is
the go command that compiles, with its own cache, so that what comes out is what the
Makefile's build makes, byte for byte.
"""

load("@host//:settings.bzl", "BUILD_FLAGS", "CGO_ENABLED", "GO", "GOMODCACHE", "GOROOT", "GO_VERSION", "LDFLAGS", "SYSTEM_TESTS")
load(":vendored.bzl", "GoInfo")

GoModuleInfo = provider(
    "What every package of the module needs.",
    fields = {
        "inputs": "depset of Files",
        "overlay": "File: the seam, for go's -overlay",
        "vendor": "File: the vendored tree",
    },
)

_ENV = {
    "CGO_ENABLED": CGO_ENABLED,
    "GODEBUG": "embedfollowsymlinks=1",  # a sandbox is made of links
    "GOENV": "off",
    "GOPROXY": "off",
    "GOROOT": GOROOT,
    "GOTOOLCHAIN": "local",
    "GOWORK": "off",
    "GO_HOST_VERSION": GO_VERSION,  # nobody reads it: another Go is another action
}

def _run_go(ctx, script, vendor, inputs, output, args, mnemonic):
    ctx.actions.run(
        executable = script,
        inputs = inputs,
        outputs = [output],
        arguments = [vendor.path, output.path, GO] + args,
        # Not use_default_shell_env: with it, Bazel before 7 ignores env.
        env = dict(ctx.configuration.default_shell_env, GOFLAGS = "-mod=vendor", **_ENV),
        mnemonic = mnemonic,
        progress_message = "%s %s" % (mnemonic, ctx.label),
    )

def _go_module_impl(ctx):
    overlay = ctx.actions.declare_file(ctx.label.name + ".overlay.json")
    module = [ctx.file._go_mod, ctx.file._go_sum, ctx.file.vendor]
    _run_go(
        ctx,
        script = ctx.executable._seam,
        vendor = ctx.file.vendor,
        inputs = module + ctx.files.seam,
        output = overlay,
        args = [],
        mnemonic = "GoSeam",
    )
    return [GoModuleInfo(
        inputs = depset(
            module + ctx.files.seam + [overlay],
            transitive = [dep[GoInfo].srcs for dep in ctx.attr.deps],
        ),
        overlay = overlay,
        vendor = ctx.file.vendor,
    )]

_GO_MOD = {
    "_go_mod": attr.label(allow_single_file = True, default = "//:go.mod"),
    "_go_sum": attr.label(allow_single_file = True, default = "//:go.sum"),
}

go_module = rule(
    implementation = _go_module_impl,
    attrs = dict(_GO_MOD, **{
        "deps": attr.label_list(providers = [GoInfo], doc = "what the files of the seam import of this module"),
        "seam": attr.label(mandatory = True, doc = "the folder seam/"),
        "vendor": attr.label(allow_single_file = True, mandatory = True),
        "_seam": attr.label(allow_single_file = True, cfg = "exec", default = "//bazel:seam.sh", executable = True),
    }),
    doc = "Checks the seam and lays it, with seam/'s own program.",
)

def _compile(ctx, srcs, output, command):
    """Has the go command build this rule's package."""
    module = ctx.attr._module[GoModuleInfo]
    args = command + BUILD_FLAGS.split(" ")
    if ctx.attr.seam:
        args.append("-overlay=" + module.overlay.path)
    if ctx.attr.ldflags:
        args.append("-ldflags=" + ctx.attr.ldflags)
    _run_go(
        ctx,
        script = ctx.executable._go,
        vendor = module.vendor,
        inputs = depset(transitive = [srcs, module.inputs]),
        output = output,
        args = args + ["-o", output.path, "./" + ctx.label.package],
        mnemonic = "Go" + command[0].title(),
    )

def _srcs(ctx):
    return depset(
        ctx.files.srcs + ctx.files.embedsrcs,
        transitive = [dep[GoInfo].srcs for dep in ctx.attr.deps + ctx.attr.embed],
    )

def _go_library_impl(ctx):
    srcs = _srcs(ctx)
    return [DefaultInfo(files = srcs), GoInfo(srcs = srcs)]

def _go_binary_impl(ctx):
    # In a folder: a package below this one may have the binary's name.
    binary = ctx.actions.declare_file("%s_/%s" % (ctx.label.name, ctx.label.name))
    _compile(ctx, _srcs(ctx), binary, ["build"])
    return [DefaultInfo(executable = binary, files = depset([binary]))]

def _quote(text):
    return "'" + text.replace("'", "'\\''") + "'"

def _go_settings(goflags):
    """For a test that calls the go command."""
    return [
        "export %s=%s" % (name, _quote(value))
        for name, value in dict(_ENV, GOFLAGS = goflags).items()
    ] + ["export PATH=%s:$PATH" % _quote(GOROOT + "/bin")]

def _runner(ctx, settings, command, files):
    """Declares the program that Bazel starts as the test."""
    runner = ctx.actions.declare_file(ctx.label.name + ".sh")
    ctx.actions.expand_template(
        template = ctx.file._runner,
        output = runner,
        is_executable = True,
        substitutions = {
            "#SETTINGS": "\n".join(settings),
            "COMMAND": " ".join(command),
        },
    )
    return [DefaultInfo(executable = runner, runfiles = files)]

def _go_test_impl(ctx):
    binary = ctx.actions.declare_file(ctx.label.name + "_/" + ctx.label.name)
    _compile(ctx, _srcs(ctx), binary, ["test", "-c"])
    files = ctx.runfiles(
        files = [binary, ctx.file._go_mod, ctx.file._go_sum] + ctx.files.data,
        # For tests that look at gVisor's source, which go finds from there.
        symlinks = {"vendor": ctx.attr._module[GoModuleInfo].vendor},
    )
    for dep in ctx.attr.data + ctx.attr.programs.keys():
        files = files.merge(dep[DefaultInfo].default_runfiles)
    settings = [
        "package=" + _quote(ctx.label.package),
        "in_tree=" + ("yes" if ctx.attr.in_tree else ""),
    ] + _go_settings("-mod=vendor") + [
        'export %s="$runfiles"/%s' % (name, _quote(program[DefaultInfo].files_to_run.executable.short_path))
        for program, name in ctx.attr.programs.items()
    ]
    return _runner(ctx, settings, ['"$runfiles"/' + _quote(binary.short_path)], files)

_PACKAGE = {
    "deps": attr.label_list(providers = [GoInfo]),
    "embed": attr.label_list(providers = [GoInfo]),
    "embedsrcs": attr.label_list(allow_files = True),
    "importpath": attr.string(),
    "srcs": attr.label_list(allow_files = [".go", ".h", ".s"]),
}

_COMPILED = dict(
    _PACKAGE,
    ldflags = attr.string(doc = "as go's -ldflags; gc_linkopts is Gazelle's, and it would empty it"),
    seam = attr.bool(default = True, doc = "False for gVisor as it is"),
    _go = attr.label(allow_single_file = True, cfg = "exec", default = "//bazel:go.sh", executable = True),
    _module = attr.label(default = "//:module", providers = [GoModuleInfo]),
)

_TEST = {
    "_runner": attr.label(allow_single_file = True, default = "//bazel:run_test.sh"),
}

go_library = rule(implementation = _go_library_impl, attrs = _PACKAGE)

go_binary = rule(implementation = _go_binary_impl, attrs = _COMPILED, executable = True)

_go_test = rule(
    implementation = _go_test_impl,
    attrs = dict(
        _COMPILED,
        data = attr.label_list(allow_files = True),
        in_tree = attr.bool(doc = "run in the project's own tree, which is then not a declared input"),
        programs = attr.label_keyed_string_dict(doc = "what the test starts, each with the environment variable that says where it is"),
        **dict(_GO_MOD, **_TEST)
    ),
    test = True,
)

def _is_system_test(package):
    for pattern in SYSTEM_TESTS.split(" "):
        folder = pattern[len("./"):]
        if folder.endswith("/..."):
            folder = folder[:-len("/...")]
            if package.startswith(folder + "/"):
                return True
        if package == folder:
            return True
    return False

def go_test(name, in_tree = False, tags = [], **kwargs):
    """A Go test. One of the Makefile's SYSTEM_TESTS gets the built runsc, and runs as root, outside the sandbox.

    Args:
      name: the name of the target.
      in_tree: for a test that looks at the project as a whole: it runs where the source is, always anew.
      tags: as for every test.
      **kwargs: as for rules_go's go_test.
    """
    if _is_system_test(native.package_name()):
        in_tree = True
        kwargs.setdefault("size", "large")
        kwargs.setdefault("programs", {"//runsc": "TPUVISOR_RUNSC"})
    kwargs.setdefault("ldflags", "-s -w")  # as `go test` links
    if in_tree:
        tags = tags + ["external", "local", "no-sandbox"]
    _go_test(name = name, in_tree = in_tree, tags = tags, **kwargs)

def _go_run_test_impl(ctx):
    settings = ["counts=", "export GOMODCACHE=" + _quote(GOMODCACHE)] + _go_settings("-mod=readonly")
    command = [_quote(word) for word in [GO] + ctx.attr.command]
    return _runner(ctx, settings, command, ctx.runfiles(files = ctx.files.data))

go_run_test = rule(
    implementation = _go_run_test_impl,
    attrs = dict(
        _TEST,
        command = attr.string_list(mandatory = True, doc = "what comes after `go`"),
        data = attr.label_list(allow_files = True),
    ),
    doc = "A go command that has to succeed, at the root of a tree of the data.",
    test = True,
)

# The ldflags of a runsc.
RUNSC_LDFLAGS = LDFLAGS
