package match

import (
	"hash/maphash"
	"unicode/utf8"
)

// body is content.body, folded and split into words. Words consist of [A-Z], [a-z],
// [0-9] and _ (Matrix specification, "Push Rules", "Conditions").
type body struct {
	folded string
	words  []uint64 // hashes, in order

	// lookalikes has a bit for each byte of folded, set for the long s and the Kelvin
	// sign: they fold to letters but are word boundaries. It is nil for a body without
	// these characters.
	lookalikes []uint64
}

// seed is random, so that attackers cannot choose words that collide.
var seed = maphash.MakeSeed()

func wordHash(word string) uint64 { return maphash.String(seed, word) }

var wordBytes = newWordBytes()

func newWordBytes() (table [256]bool) {
	for c := range table {
		table[c] = c == '_' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
	}
	return table
}

// readBody folds and splits a text. It relies on a folded text never being longer.
func readBody(text string) body {
	b := body{words: make([]uint64, 0, len(text)/4+2)}
	folded := make([]byte, len(text))
	end := 0   // of the folded text
	start := 0 // of the current word, in folded
	for i := 0; i < len(text); {
		c := text[i]
		if wordBytes[c] {
			folded[end] = lower[c]
			i, end = i+1, end+1
			continue
		}
		if start < end {
			b.words = append(b.words, maphash.Bytes(seed, folded[start:end]))
		}
		if c < utf8.RuneSelf {
			folded[end] = c
			i, end = i+1, end+1
		} else {
			r, size := utf8.DecodeRuneInString(text[i:])
			r = foldRune(r)
			if r < utf8.RuneSelf {
				b.markLookalike(end, len(text))
			}
			i, end = i+size, end+utf8.EncodeRune(folded[end:], r)
		}
		start = end
	}
	if start < end {
		b.words = append(b.words, maphash.Bytes(seed, folded[start:end]))
	}
	b.folded = asText(folded[:end])
	return b
}

func (b *body) markLookalike(at, length int) {
	if b.lookalikes == nil {
		b.lookalikes = make([]uint64, (length+63)/64)
	}
	b.lookalikes[at/64] |= 1 << (at % 64)
}

// isBoundary reports whether a position is an end of the body, or next to a character
// that is not part of a word.
func (b *body) isBoundary(at int) bool {
	return at == 0 || at == len(b.folded) || !b.isWord(at-1) || !b.isWord(at)
}

func (b *body) isWord(at int) bool {
	return wordBytes[b.folded[at]] && (b.lookalikes == nil || b.lookalikes[at/64]>>(at%64)&1 == 0)
}
