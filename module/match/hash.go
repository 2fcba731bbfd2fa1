package match

import "hash/maphash"

// seed makes hashes unlike those of any other process, so that nobody can make
// events or rules that are slow to look through.
var seed = maphash.MakeSeed()

// hashSeed begins hashes, hashFactor mixes them.
var hashSeed, hashFactor = maphash.String(seed, "0"), maphash.String(seed, "1") | 1

const hashStep = 8

// wordHash returns the hash of the word text[start:end], which is the same in
// upper and lower case. It reads the text, not what was just folded, which
// would be slow to read again.
func wordHash(text string, start, end int) uint64 {
	const lowerCase = 0x2020202020202020 // turns the letters of words into lower case, and no two others into one
	hash, factor := hashSeed+uint64(end-start), hashFactor
	for ; end-start > hashStep; start += hashStep {
		hash = mix(hash^(readWord(text[start:])|lowerCase), factor)
	}
	var last uint64
	if start+hashStep <= len(text) {
		last = readWord(text[start:])
	} else {
		for i := end - 1; i >= start; i-- {
			last = last<<8 | uint64(text[i])
		}
	}
	last <<= 8 * (hashStep - (end - start))
	return mix(hash^(last|lowerCase), factor)
}

func mix(hash, factor uint64) uint64 {
	hash *= factor
	return hash ^ hash>>32
}

// childHash returns the hash of a property's path from that of the object
// which it is in, 0 for the event.
func childHash(parent uint64, name string) uint64 {
	hash, factor := parent+hashSeed+uint64(len(name)), hashFactor
	for ; len(name) > hashStep; name = name[hashStep:] {
		hash = mix(hash^readWord(name), factor)
	}
	last := uint64(0)
	for i := range len(name) {
		last = last<<8 | uint64(name[i])
	}
	return mix(hash^last, factor)
}

// readWord returns the first eight bytes as a number.
func readWord(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}
