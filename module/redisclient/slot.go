package redisclient

import "strings"

// slots is how many a cluster has.
const slots = 1 << 14

// SlotOf returns the hash slot of a key in a cluster: CRC16 (XMODEM) of its hash
// tag, or of the whole key if it has none.
func SlotOf(key string) int {
	if _, rest, opened := strings.Cut(key, "{"); opened {
		if tag, _, closed := strings.Cut(rest, "}"); closed && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			carry := crc >> 15
			crc = crc<<1 ^ carry*0x1021
		}
	}
	return int(crc % slots)
}
