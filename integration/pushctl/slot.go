package main

import "strings"

// slots is how many hash slots a cluster has.
const slots = 16384

// slotOf returns the hash slot of a key (Redis cluster specification, "Hash
// tags"): that of what is between the first brace and the next that closes,
// unless it is nothing.
func slotOf(key string) int {
	if _, rest, opened := strings.Cut(key, "{"); opened {
		if tag, _, closed := strings.Cut(rest, "}"); closed && tag != "" {
			key = tag
		}
	}
	return int(crc16(key)) % slots
}

// crc16 is the CRC-16 of the XMODEM protocol.
func crc16(text string) (crc uint16) {
	for i := range len(text) {
		crc ^= uint16(text[i]) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return crc
}
