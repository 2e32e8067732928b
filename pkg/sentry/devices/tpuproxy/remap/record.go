package remap

import (
	"encoding/json"
	"fmt"
)

// MetadataKey is where a checkpoint's metadata holds its inventory. The key and
// the first two fields are those that gVisor has for the same purpose.
const MetadataKey = "tpu-device-remap-ids"

type recorded struct {
	Address string `json:"bdf"`
	Group   uint32 `json:"group_num"`
	ID      uint16 `json:"device_id,omitempty"`
}

// Encode makes the text under MetadataKey.
func (inv Inventory) Encode() (string, error) {
	out := make([]recorded, len(inv))
	for i, d := range inv {
		out[i] = recorded(d)
	}
	text, err := json.Marshal(out)
	return string(text), err
}

// Decode is the inverse of Encode.
func Decode(text string) (Inventory, error) {
	var in []recorded
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return nil, fmt.Errorf("the checkpoint's list of TPUs: %w", err)
	}
	inv := make(Inventory, len(in))
	for i, r := range in {
		inv[i] = Device(r)
	}
	inv.sort()
	return inv, nil
}

// Recorded is the inventory in a checkpoint's metadata. One without any, made by a
// runsc that records none, has an empty one.
func Recorded(metadata map[string]string) (Inventory, error) {
	text, ok := metadata[MetadataKey]
	if !ok {
		return nil, nil
	}
	return Decode(text)
}
