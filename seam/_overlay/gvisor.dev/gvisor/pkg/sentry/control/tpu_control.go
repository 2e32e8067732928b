package control

import (
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"tpuvisor.dev/tpuvisor/pkg/sentry/savehook"
)

func init() { savehook.MarkSeamLaid() }

func preSaveTPU(k *kernel.Kernel) error { return savehook.PreSave(k) }

func postResumeTPU(k *kernel.Kernel) error { return savehook.PostResume(k) }

func postRestoreTPU(k *kernel.Kernel) error { return savehook.PostRestore(k) }

// TPU is a control-socket method, savehook.CallMethod.
func (s *State) TPU(request *savehook.Request, response *savehook.Response) error {
	return savehook.Call(s.Kernel, request, response)
}
