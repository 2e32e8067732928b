package libtpusim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"tpuvisor.dev/tpuvisor/pkg/tpuwire"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// kind is a kind of Fault.
type kind struct {
	doc   string
	value func(string) error // checks the value; nil: there is none
	ahead bool               // done before the request has come
	do    func(*turn) error
}

// kinds is filled by init, since what a kind does leads back to it.
var kinds map[string]kind

func init() {
	kinds = map[string]kind{
		"refuse":        {doc: "says no, and does nothing", do: refuse},
		"longtext":      {doc: "says no, with as many words as a frame can hold", do: refuseAtLength},
		"escapes":       {doc: "says no, with terminal escapes and control bytes", do: refuseWithEscapes},
		"stall":         {doc: "never answers, and does nothing", do: stall},
		"late":          {doc: "does it, and answers after the time given", value: isDuration, do: late},
		"wrongstate":    {doc: "does it, and says that it is in the state given", value: isState, do: wrongState},
		"topology":      {doc: "does it, and says that it has chips of the architecture given", value: isText, do: topology},
		"half":          {doc: "does it, writes half of the answer and hangs", do: half},
		"oversize":      {doc: "does it, and begins an answer that is one byte too long", do: oversize},
		"huge":          {doc: "does it, and begins an answer of 4 GiB less one byte", do: huge},
		"garbage":       {doc: "does it, and answers with a frame that holds no message", do: garbage},
		"empty":         {doc: "does it, and answers with a frame of no bytes", do: empty},
		"nofields":      {doc: "does it, and says so, and nothing else", do: noFields},
		"nosuccess":     {doc: "does it, and says all but whether it did", do: noSuccess},
		"utf8":          {doc: "does it, with words that are no UTF-8", do: badUTF8},
		"unknownfields": {doc: "does it, with fields that nobody knows", do: unknownFields},
		"dribble":       {doc: "does it, and writes the answer byte by byte", do: dribble},
		"twice":         {doc: "does it, and answers twice", do: twice},
		"stale":         {doc: "does it, and answers an older request first", do: stale},
		"early":         {doc: "has answered before the request comes", ahead: true, do: early},
		"abort":         {doc: "ends the process", do: abort},
		"exitthread":    {doc: "ends the control thread", do: exitThread},
		"closeread":     {doc: "has closed its end of the request pipe", ahead: true, do: closeRead},
		"closewrite":    {doc: "closes its end of the answer pipe, and does nothing", do: closeWrite},
		"stopreading":   {doc: "reads no more, and the request pipe is full", ahead: true, do: stopReading},
	}
}

// Kinds lists the kinds of fault, in order.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// Describe says what a kind of fault does, "" for one that there is not.
func Describe(kind string) string { return kinds[kind].doc }

func refuse(t *turn) error {
	t.actIfTold()
	return t.answer(t.refusal("told to refuse"))
}

func refuseAtLength(t *turn) error {
	answer := t.refusal("")
	answer.ErrorMessage = proto.String("")
	words := strings.Repeat("out of words ", tpuwire.MaxMessage/len("out of words ")+1)
	room := tpuwire.MaxMessage - proto.Size(answer) - protowire.SizeVarint(tpuwire.MaxMessage) + 1
	answer.ErrorMessage = proto.String(words[:room])
	return t.answer(answer)
}

func refuseWithEscapes(t *turn) error {
	return t.answer(t.refusal("\x1b[2J\x1b]0;owned\x07\r\nsuccess\u202e\x00\x7f"))
}

func stall(t *turn) error {
	t.actIfTold()
	return t.hang()
}

func late(t *turn) error {
	d, err := time.ParseDuration(t.fault.Value)
	if err != nil {
		return err
	}
	answer := t.act()
	if err := t.sleep(d); err != nil {
		return err
	}
	return t.answer(answer)
}

func wrongState(t *turn) error {
	state, err := parseAnyState(t.fault.Value)
	if err != nil {
		return err
	}
	answer := t.act()
	answer.CurrentState = state
	return t.answer(answer)
}

func topology(t *turn) error {
	answer := t.act()
	changed := &controlpb.TpuTopology{}
	proto.Merge(changed, answer.GetActiveTopology())
	changed.ChipArchitecture = proto.String(t.fault.Value)
	answer.ActiveTopology = changed
	return t.answer(answer)
}

func half(t *turn) error {
	frame, err := tpuwire.AppendFrame(nil, t.act())
	if err != nil {
		return err
	}
	if err := t.send(frame[:len(frame)/2]); err != nil {
		return err
	}
	return t.hang()
}

// claim answers with a header that claims a size, and some bytes.
func claim(t *turn, size uint32) error {
	t.act()
	frame := binary.BigEndian.AppendUint32(nil, size)
	return t.send(append(frame, bytes.Repeat([]byte{0x0a}, 64)...))
}

func oversize(t *turn) error { return claim(t, tpuwire.MaxMessage+1) }
func huge(t *turn) error     { return claim(t, 1<<32-1) }

// raw answers with a frame that holds the bytes given.
func raw(t *turn, message []byte) error {
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(message)))
	return t.send(append(frame, message...))
}

func garbage(t *turn) error {
	t.act()
	return raw(t, bytes.Repeat([]byte{0xff}, 16))
}

func empty(t *turn) error {
	t.act()
	return raw(t, nil)
}

func noFields(t *turn) error {
	return t.answer(&controlpb.ControlResponse{Success: proto.Bool(t.act().GetSuccess())})
}

func noSuccess(t *turn) error {
	answer := t.act()
	answer.Success = nil
	return t.answer(answer)
}

// with answers with more bytes behind the message.
func with(t *turn, more []byte) error {
	message, err := proto.Marshal(t.act())
	if err != nil {
		return err
	}
	return raw(t, append(message, more...))
}

func badUTF8(t *turn) error {
	words := protowire.AppendTag(nil, 3, protowire.BytesType)
	return with(t, protowire.AppendBytes(words, []byte("bad \xff\xfe words")))
}

func unknownFields(t *turn) error {
	more := protowire.AppendTag(nil, 100, protowire.VarintType)
	more = protowire.AppendVarint(more, 42)
	more = protowire.AppendTag(more, 101, protowire.BytesType)
	return with(t, protowire.AppendBytes(more, []byte("of a later version")))
}

func dribble(t *turn) error {
	frame, err := tpuwire.AppendFrame(nil, t.act())
	if err != nil {
		return err
	}
	for i := range frame {
		if err := t.send(frame[i : i+1]); err != nil {
			return err
		}
		if err := t.sleep(time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func twice(t *turn) error {
	answer := t.act()
	if err := t.answer(answer); err != nil {
		return err
	}
	return t.answer(answer)
}

// stale answers as the request before this one would have been answered.
func stale(t *turn) error {
	older := detached
	if t.req.GetAction() == checkpoint {
		older = running
	}
	answer := t.act()
	if err := t.answer(&controlpb.ControlResponse{Success: proto.Bool(true), CurrentState: older.Enum()}); err != nil {
		return err
	}
	return t.answer(answer)
}

func early(t *turn) error { return t.answer(t.pretended()) }

// upTo does the part of a turn that comes before the time of the fault's end.
func upTo(t *turn) error {
	if t.fault.At == "" || t.fault.At == atBefore {
		return nil
	}
	frame, err := tpuwire.AppendFrame(nil, t.act())
	if err != nil {
		return err
	}
	switch t.fault.At {
	case atHalf:
		return t.send(frame[:len(frame)/2])
	case atAfter:
		return t.send(frame)
	}
	return nil
}

func abort(t *turn) error {
	if err := upTo(t); err != nil {
		return err
	}
	if t.r.Abort != nil {
		reason := "told to abort"
		if t.fault.Text != "" {
			reason = t.fault.Text
		}
		t.r.Abort(fmt.Sprintf("%s at %s", reason, tpuwire.ActionName(t.req.GetAction())))
	}
	return ErrAborted
}

func exitThread(t *turn) error {
	if err := upTo(t); err != nil {
		return err
	}
	return ErrThreadExit
}

func closeRead(t *turn) error {
	if err := shut(t.requests); err != nil {
		return err
	}
	return t.hang()
}

func closeWrite(t *turn) error {
	if err := shut(t.answers); err != nil {
		return err
	}
	return t.hang()
}

func shut(end any) error {
	c, ok := end.(io.Closer)
	if !ok {
		return fmt.Errorf("libtpusim: a %T cannot be closed", end)
	}
	return c.Close()
}

func stopReading(t *turn) error {
	if t.r.FillRequests == nil {
		return fmt.Errorf("libtpusim: nothing given to fill the request pipe with")
	}
	if err := t.r.FillRequests(); err != nil {
		return err
	}
	return t.hang()
}
