package operator

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tpuvisor.dev/tpuvisor/test/sandbox"
	"tpuvisor.dev/tpuvisor/test/tpuhost"
	"tpuvisor.dev/tpuvisor/test/trial"
)

// readReport reads an image's tpu.json, and changes it if change is not nil.
func readReport(t *testing.T, image string, change func(map[string]any)) map[string]any {
	t.Helper()
	path := filepath.Join(image, "tpu.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var report map[string]any
	if err := json.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}
	if change == nil {
		return report
	}
	change(report)
	if data, err = json.Marshal(report); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return report
}

// TestReport compares tpu.json with its schema and with what there is.
func TestReport(t *testing.T) {
	t.Parallel()
	rules := readSchema(t, "tpu.schema.json")
	r := start(t, trial.Job{Processes: 2, Groups: []int{3, 5}, Annotations: map[string]string{annotation + "timeout": "2m"}})
	for _, flags := range [][]string{{"-leave-running"}, {"-compression=none"}} {
		image := r.Image()
		r.runsc("checkpoint", append(flags, "-image-path="+image, r.Container.ID)...).wants(t, yes)
		report := readReport(t, image, nil)
		for _, wrong := range rules.check(rules, "tpu.json", report) {
			t.Errorf("%q: %s", flags, wrong)
		}
		text, err := json.Marshal(report)
		r.must(err)
		for _, want := range []string{
			`"iommuGroup":3`, `"iommuGroup":5`, `"architecture":"v5e"`, `"deviceID":"0x0063"`, `"settings":{"timeout":"2m"}`,
			`"command":"trainer"`, `"chipArchitecture":"v5e"`, `"name":"checkpoint.img"`, `"name":"save"`, `"state":"DETACHED"`,
		} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%q: tpu.json does not say %s:\n%s", flags, want, text)
			}
		}
		if n := len(report["runtimes"].([]any)); n != 2 {
			t.Errorf("%q: %d runtimes, want 2", flags, n)
		}
		for _, name := range files(t, image) {
			if strings.HasPrefix(name, ".") {
				t.Errorf("the image has a file %s", name)
			}
		}
	}
}

// TestReportWithoutTPU is that of a sandbox that TPUs are nothing to.
func TestReportWithoutTPU(t *testing.T) {
	t.Parallel()
	rules := readSchema(t, "tpu.schema.json")
	r := start(t, trial.Job{CPU: true})
	image := r.Image()
	r.runsc("checkpoint", "-image-path="+image, r.Container.ID).wants(t, yes)
	for _, wrong := range rules.check(rules, "tpu.json", readReport(t, image, nil)) {
		t.Error(wrong)
	}
	r.runsc("tpu", "check", image).wants(t, yes, "containers:")
	r.runsc("tpu", "trace", image).wants(t, no, "no operation")
	r.must(r.Restore(t.Context(), image))
	r.goesOn()
}

// TestCheck looks at an image from several hosts.
func TestCheck(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Processes: 2})
	image := r.Image()
	r.runsc("checkpoint", "-image-path="+image, r.Container.ID).wants(t, yes)
	other, err := tpuhost.New("v6e", 0, 1)
	r.must(err)
	for _, tc := range []struct {
		name   string
		host   tpuhost.Host
		args   []string
		status int
		words  []string
	}{
		{"same", host(t, 0, 1), nil, yes, []string{"v5e 0000:00:04.0 in group 0", "process:", `"trainer"`, "checkpoint.img"}},
		{"larger", host(t, 7, 8, 9), nil, yes, []string{"here:"}},
		{"in a bundle", host(t, 0, 1), []string{"-bundle=" + r.bundle(1)}, yes, nil},
		{"bundle of other groups", host(t, 7, 8), []string{"-bundle=" + r.bundle(1)}, no, []string{"too few TPUs here"}},
		{"smaller", host(t, 0), nil, no, []string{"cannot be restored here:", "too few TPUs here"}},
		{"other TPUs", other, nil, no, []string{"TPUs of another architecture here"}},
	} {
		s := r.beginOn(tc.host, "tpu", append(append([]string{"check"}, tc.args...), image)...).end()
		if s.status != tc.status {
			t.Errorf("%s: status %d, want %d\n%s%s", tc.name, s.status, tc.status, s.stdout, s.stderr)
			continue
		}
		s.wants(t, tc.status, tc.words...)
		s.oneLine(t)
	}
	v := parse[map[string]any](t, r.beginOn(host(t, 0), "tpu", "check", "-format=json", image).end().wants(t, no))
	if v["ok"] != false || v["why"] == "" {
		t.Errorf("the verdict is %v", v)
	}
	r.must(os.Truncate(filepath.Join(image, "checkpoint.img"), 10))
	r.beginOn(host(t, 0, 1), "tpu", "check", image).end().wants(t, no, "cut off")
	r.runsc("tpu", "check", r.dir).wants(t, no, "opening the image")
}

// TestEarlyRefusals wants a restore that cannot work to be refused before there is a
// sandbox, and one without a report to be tried.
func TestEarlyRefusals(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{})
	image := r.Image()
	r.runsc("checkpoint", "-compression=none", "-image-path="+image, r.Container.ID).wants(t, yes)
	again := []string{"-detach", "-bundle=" + r.bundle(1), "-image-path=" + image, "again"}

	pages := filepath.Join(image, "pages.img")
	info, err := os.Stat(pages)
	r.must(err)
	r.must(os.Truncate(pages, info.Size()-1))
	r.beginOn(host(t, 0), "restore", again...).end().wants(t, failed, "restore refused:", "the image is not whole: pages.img has").oneLine(t)
	r.must(os.Truncate(pages, info.Size()))
	r.beginOn(host(t, 4), "restore", again...).end().wants(t, failed, "restore refused:", "too few TPUs here").oneLine(t)
	readReport(t, image, func(report map[string]any) {
		report["schemaVersion"] = 99
		report["files"] = []any{map[string]any{"name": "of-the-future.img", "size": 1}}
	})
	if out := r.runsc("list", "-quiet").stdout; strings.Contains(out, "again") {
		t.Errorf("there are containers: %s", out)
	}
	r.must(r.Wipe())
	r.must(r.Restore(t.Context(), image)) // a later report is left alone
	r.goesOn()
	r.must(r.Container.Delete(t.Context()))
	r.must(os.Remove(filepath.Join(image, "tpu.json")))
	readImage := files(t, image)
	if slices.Contains(readImage, "tpu.json") {
		t.Error("the report is still there")
	}
	r.runsc("tpu", "trace", image).wants(t, failed, "has no tpu.json")
}

// TestFailedRestore wants the failure to reach whoever waits for the TPUs, and
// nothing of the sandbox to be left by the command that made it.
func TestFailedRestore(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Fault: "refuse@RESTORE:state=FAULTED,text=group%20is%20held"})
	image := r.Image()
	r.runsc("checkpoint", "-image-path="+image, r.Container.ID).wants(t, yes)
	args := func(id string, more ...string) []string {
		return append(more, "-bundle="+r.bundle(1), "-image-path="+image, id)
	}
	words := []string{"restore failed:", "RESTORE of pid", `"group is held"`, "FAULTED"}
	r.beginOn(host(t, 0), "restore", args("attached")...).end().wants(t, failed, words...)
	r.beginOn(host(t, 0), "restore", args("showing", "-detach", "-tpu-progress")...).end().
		wants(t, failed, append(words, "tpu: restore: attach", "RESTORE sent, limit 3m0s")...)
	r.must(sandbox.Poll(t.Context(), "the sandboxes to be gone", func() (bool, error) {
		out := r.runsc("list", "-quiet").stdout
		return !strings.Contains(out, "attached") && !strings.Contains(out, "showing"), nil
	}))
}

// TestFailedRestoreInTheBackground wants it to reach those who wait.
func TestFailedRestoreInTheBackground(t *testing.T) {
	t.Parallel()
	r := start(t, trial.Job{Fault: "late=1m@RESTORE", Annotations: map[string]string{annotation + "restore-timeout": "4s"}})
	image := r.Image()
	r.runsc("checkpoint", "-image-path="+image, r.Container.ID).wants(t, yes)
	r.must(r.RestoreOnly(t.Context(), image))
	tpu := r.begin("tpu", "wait", r.Container.ID)
	gvisor := r.begin("wait", "-restore", r.Container.ID)
	tpu.end().wants(t, no, "the TPUs are not back:", "RESTORE of pid", "no answer in time (the limit is 4s)")
	gvisor.end().wants(t, failed, "waiting for restore to complete:", "RESTORE of pid", "no answer in time")
}
