package control

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
	"tpuvisor.dev/tpuvisor/proto/recordpb"
)

// The keys of what is kept in the kernel's checkpoint state. Both values are of
// types that gVisor saves by itself, so that an image needs nothing of ours to be
// read.
const (
	tasksKey  = "tpu-tasks"       // []*kernel.Task, as gVisor itself keeps it
	recordKey = "tpuvisor-record" // []byte, a recordpb.Record
)

// recordVersion is the version of the record that this code writes and reads.
const recordVersion = 1

// A detachment is what a pre-save has detached.
type detachment struct {
	record *recordpb.Record
	tasks  []*kernel.Task
}

// keepRecord puts into the kernel's state what is owed to the members.
func (p *Plane) keepRecord(k *kernel.Kernel, members []*member) error {
	d := &detachment{record: &recordpb.Record{Version: proto.Int32(recordVersion)}}
	for _, m := range members {
		if m.standing.owed() == controlpb.ControlAction_ACTION_UNSPECIFIED {
			continue // was found detached
		}
		entry, err := m.entry(k, len(d.tasks))
		if err != nil {
			return m.fail(fmt.Errorf("noting its pipes: %w", err))
		}
		d.record.Runtimes = append(d.record.Runtimes, entry)
		d.tasks = append(d.tasks, m.tasks[0])
	}
	if len(d.tasks) == 0 {
		return nil
	}
	if err := d.put(k); err != nil {
		return err
	}
	p.detached = d
	return nil
}

// put puts the detachment into the kernel's state.
func (d *detachment) put(k *kernel.Kernel) error {
	data, err := proto.Marshal(d.record)
	if err != nil {
		return fmt.Errorf("writing the record: %w", err)
	}
	k.AddStateToCheckpoint(tasksKey, d.tasks)
	k.AddStateToCheckpoint(recordKey, data)
	return nil
}

func (m *member) entry(k *kernel.Kernel, index int) (*recordpb.Runtime, error) {
	sctx := k.SupervisorContext()
	request, err := inode(sctx, m.channel.requestFile)
	if err != nil {
		return nil, err
	}
	response, err := inode(sctx, m.channel.responseFile)
	if err != nil {
		return nil, err
	}
	return &recordpb.Runtime{
		Task:         proto.Int32(int32(index)),
		Container:    proto.String(k.ContainerName(m.process.container)),
		Pid:          proto.Int32(m.process.pid),
		Tid:          proto.Int32(m.tid),
		Command:      proto.String(strings.ToValidUTF8(m.process.command, "\uFFFD")),
		RequestFd:    proto.Int32(m.fds.RequestFD),
		ResponseFd:   proto.Int32(m.fds.ResponseFD),
		RequestPipe:  proto.Uint64(request),
		ResponsePipe: proto.Uint64(response),
		Topology:     m.topology,
		FoundState:   m.found.Enum(),
		Locked:       proto.Bool(m.standing == lockedDetached),
	}, nil
}

// recordPending reports whether something is owed to runtimes.
func recordPending(k *kernel.Kernel) bool {
	pending := false
	for _, key := range []string{tasksKey, recordKey} {
		if v := k.PopCheckpointState(key); v != nil {
			k.AddStateToCheckpoint(key, v)
			pending = true
		}
	}
	return pending
}

// dropRecord takes the record out of the kernel and reports whether it was there.
func dropRecord(k *kernel.Kernel) bool {
	tasks, record := k.PopCheckpointState(tasksKey), k.PopCheckpointState(recordKey)
	return tasks != nil || record != nil
}

// takeRecord takes what is owed out of the kernel; it is nil if nothing is. An
// image of gVisor's own has the tasks only: their names tell the rest.
func takeRecord(k *kernel.Kernel) (*detachment, error) {
	tasksValue, dataValue := k.PopCheckpointState(tasksKey), k.PopCheckpointState(recordKey)
	if tasksValue == nil && dataValue == nil {
		return nil, nil
	}
	tasks, ok := tasksValue.([]*kernel.Task)
	if !ok {
		return nil, fmt.Errorf("%w: its list of tasks is a %T", ErrRecord, tasksValue)
	}
	if dataValue == nil {
		record, err := recordFromNames(tasks)
		return &detachment{record, tasks}, err
	}
	data, ok := dataValue.([]byte)
	if !ok {
		return nil, fmt.Errorf("%w: it is a %T", ErrRecord, dataValue)
	}
	record, err := parseRecord(data, tasks)
	return &detachment{record, tasks}, err
}

func parseRecord(data []byte, tasks []*kernel.Task) (*recordpb.Record, error) {
	record := &recordpb.Record{}
	if err := proto.Unmarshal(data, record); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	if v := record.GetVersion(); v != recordVersion {
		return nil, fmt.Errorf("%w: it has version %d, and this runsc reads version %d", ErrRecord, v, recordVersion)
	}
	for _, entry := range record.GetRuntimes() {
		if i := int(entry.GetTask()); i < 0 || i >= len(tasks) || tasks[i] == nil {
			return nil, fmt.Errorf("%w: pid %d is task %d of %d", ErrRecord, entry.GetPid(), i, len(tasks))
		}
	}
	return record, nil
}

func recordFromNames(tasks []*kernel.Task) (*recordpb.Record, error) {
	record := &recordpb.Record{Version: proto.Int32(recordVersion)}
	for i, t := range tasks {
		if t == nil {
			return nil, fmt.Errorf("%w: task %d of its list is missing", ErrRecord, i)
		}
		name := t.Name()
		fds, ok := tpuwire.ParseThreadName(name)
		if !ok {
			return nil, fmt.Errorf("%w: task %d of its list is named %s, which is no control thread's name", ErrRecord, i, quoteCommand(name))
		}
		record.Runtimes = append(record.Runtimes, &recordpb.Runtime{
			Task:       proto.Int32(int32(i)),
			RequestFd:  proto.Int32(fds.RequestFD),
			ResponseFd: proto.Int32(fds.ResponseFD),
		})
	}
	return record, nil
}

// findAgain finds the runtimes of the record. A process that has ended is skipped,
// and after a restore one that runsc exec had started: gVisor kills these, since
// whoever started them is not there any more. One that lives, and whose runtime
// cannot be reached, is an error, and the others are returned with it.
func (p *Plane) findAgain(k *kernel.Kernel, d *detachment, restored bool) ([]*member, error) {
	var members []*member
	var errs []error
	for _, entry := range d.record.GetRuntimes() {
		t := d.tasks[entry.GetTask()]
		if restored && t.ThreadGroup().Leader().Origin == kernel.OriginExec {
			log.Infof("tpu: pid %d was started by exec and ends with the restore; it is not restored", entry.GetPid())
			continue
		}
		m, err := findMember(k, entry, t)
		switch {
		case err != nil:
			errs = append(errs, err)
		case m == nil:
			log.Infof("tpu: pid %d has exited since; it is not restored", entry.GetPid())
		default:
			m.notes = p.note
			members = append(members, m)
		}
	}
	p.memory = orNew(p.memory)
	p.memory.recall(runtimesOf(members))
	return members, join(errs...)
}

func runtimesOf(members []*member) []*runtime {
	all := make([]*runtime, len(members))
	for i, m := range members {
		all[i] = m.runtime
	}
	return all
}

// findMember finds one runtime of the record again, or returns nil if its process
// has ended.
func findMember(k *kernel.Kernel, entry *recordpb.Runtime, saved *kernel.Task) (*member, error) {
	g := group{tg: saved.ThreadGroup()}
	g.tg.ForEachTask(func(t *kernel.Task) bool {
		if t.ExitState() == kernel.TaskExitNone {
			g.tasks = append(g.tasks, t)
		}
		return true
	})
	if len(g.tasks) == 0 {
		return nil, nil
	}
	r := &runtime{
		process: newProcess(k, g, nil),
		fds:     tpuwire.ThreadName{RequestFD: entry.GetRequestFd(), ResponseFD: entry.GetResponseFd()},
	}
	for _, t := range r.process.tasks {
		if fds, ok := tpuwire.ParseThreadName(t.Name()); ok && fds == r.fds {
			r.tasks = append(r.tasks, t)
		}
	}
	if len(r.tasks) == 0 {
		return nil, r.fail(ErrExited)
	}
	r.tid = int32(k.RootPIDNamespace().IDOfTask(r.tasks[0]))
	ch, err := openChannel(k, r.tasks[0], r.fds)
	if err != nil {
		return nil, r.fail(fmt.Errorf("%w: %w", ErrLost, err))
	}
	r.channel = ch
	if err := samePipes(k, ch, entry); err != nil {
		ch.release()
		return nil, r.fail(err)
	}
	set, err := settingsOf(k, r.process.container)
	if err != nil {
		ch.release()
		return nil, r.fail(err)
	}
	m := &member{runtime: r, settings: set, standing: detached, found: entry.GetFoundState(), topology: entry.GetTopology()}
	if entry.GetLocked() {
		m.standing = lockedDetached
	}
	return m, nil
}

// samePipes makes sure that the FDs still lead where they led.
func samePipes(k *kernel.Kernel, ch *channel, entry *recordpb.Runtime) error {
	if entry.RequestPipe == nil || entry.ResponsePipe == nil {
		return nil // gVisor's own list does not tell
	}
	sctx := k.SupervisorContext()
	request, err := inode(sctx, ch.requestFile)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	response, err := inode(sctx, ch.responseFile)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	if request != entry.GetRequestPipe() || response != entry.GetResponsePipe() {
		return fmt.Errorf("%w: FDs %d and %d lead to other pipes now", ErrLost, entry.GetRequestFd(), entry.GetResponseFd())
	}
	return nil
}
