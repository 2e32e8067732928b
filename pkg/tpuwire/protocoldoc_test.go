package tpuwire

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"tpuvisor.dev/tpuvisor/proto/controlpb"
)

// docTables reads the tables of docs/protocol.md that stand under headings of the
// third level: for each, its rows' first columns, and the next ones joined by spaces.
func docTables(t *testing.T, columns int) map[string]map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	tables, heading := map[string]map[string]string{}, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			heading = strings.TrimLeft(line, "# ")
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if !strings.HasPrefix(line, "|") || len(cells) < columns || strings.HasPrefix(line, "|---") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if cells[1] == "no." {
			tables[heading] = map[string]string{}
		} else if tables[heading] != nil {
			tables[heading][cells[0]] = strings.Join(cells[1:columns], " ")
		}
	}
	return tables
}

func wantTable(t *testing.T, name string, got, want map[string]string) {
	t.Helper()
	for _, row := range slices.Sorted(maps.Keys(want)) {
		if got[row] != want[row] {
			t.Errorf("docs/protocol.md, table %s: %s is %q, want %q", name, row, got[row], want[row])
		}
	}
	for row := range got {
		if want[row] == "" {
			t.Errorf("docs/protocol.md, table %s: there is no %s", name, row)
		}
	}
}

func TestProtocolDoc_Fields(t *testing.T) {
	tables := docTables(t, 3)
	messages := controlpb.File_tpuvisor_control_v1_control_proto.Messages()
	for i := range messages.Len() {
		message := messages.Get(i)
		if message.Fields().Len() == 0 {
			continue
		}
		want := map[string]string{}
		for j := range message.Fields().Len() {
			field := message.Fields().Get(j)
			if !field.HasPresence() {
				t.Errorf("%s has no explicit presence", field.FullName())
			}
			want[string(field.Name())] = fmt.Sprint(field.Number(), " ", typeName(field))
		}
		wantTable(t, string(message.Name()), tables[string(message.Name())], want)
	}
}

func typeName(field protoreflect.FieldDescriptor) string {
	switch field.Kind() {
	case protoreflect.MessageKind:
		return string(field.Message().Name())
	case protoreflect.EnumKind:
		return string(field.Enum().Name())
	default:
		return field.Kind().String()
	}
}

func TestProtocolDoc_Enums(t *testing.T) {
	tables := docTables(t, 2)
	enums := controlpb.File_tpuvisor_control_v1_control_proto.Enums()
	for i := range enums.Len() {
		enum := enums.Get(i)
		want := map[string]string{}
		for j := range enum.Values().Len() {
			value := enum.Values().Get(j)
			want[string(value.Name())] = fmt.Sprint(value.Number())
		}
		wantTable(t, string(enum.Name()), tables[string(enum.Name())], want)
	}
}
