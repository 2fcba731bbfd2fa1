package match

import (
	"encoding/binary"
	"hash/maphash"
)

// seed makes hashes unlike those of any other process, so that nobody can make
// events or rules that are slow to look through.
var seed = maphash.MakeSeed()

// wordSeeds are those of [wordHash].
var wordSeeds = [2]uint64{maphash.String(seed, "0"), maphash.String(seed, "1") | 1}

const hashStep = 8

// wordHash returns the hash of text[start:end], behind which there must be
// [hashStep] more bytes, whatever they are.
func wordHash(text []byte, start, end int) uint64 {
	hash := wordSeeds[0] + uint64(end-start)
	for ; end-start > hashStep; start += hashStep {
		hash = mix(hash ^ binary.LittleEndian.Uint64(text[start:]))
	}
	last := binary.LittleEndian.Uint64(text[start:]) << (8 * (hashStep - (end - start)))
	return mix(hash ^ last)
}

func mix(hash uint64) uint64 {
	hash *= wordSeeds[1]
	return hash ^ hash>>32
}

// textHash returns the hash of a word that is not part of a body.
func textHash(word string) uint64 {
	padded := make([]byte, len(word)+hashStep)
	return wordHash(padded, 0, copy(padded, word))
}
