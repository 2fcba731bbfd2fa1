package match

import (
	"slices"
	"unicode/utf8"
)

// body is what content.body says, made ready for patterns: folded, and split
// into words, the longest runs of characters that are no word boundaries
// (Matrix specification, "Push Rules", "Conditions": [A-Z], [a-z], [0-9] and
// _ belong to words, every other character is a boundary).
type body struct {
	folded string
	words  []uint64 // their hashes, in order

	// lookalikes are the places in folded of letters that belong to words
	// only because of the folding: the long s and the Kelvin sign, which are
	// word boundaries themselves.
	lookalikes []int
}

// wordBytes tells the bytes of words.
var wordBytes = newWordBytes()

func newWordBytes() (table [256]bool) {
	for c := range table {
		table[c] = c == '_' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
	}
	return table
}

// readBody folds a body and splits it. Folding makes no text longer.
func readBody(text string) body {
	b := body{words: make([]uint64, 0, len(text)/4+2)}
	folded := make([]byte, len(text))
	end := 0   // of what is folded
	start := 0 // of the word that i is in, in text
	for i := 0; i < len(text); {
		c := text[i]
		if wordBytes[c] {
			folded[end] = lower[c]
			i, end = i+1, end+1
			continue
		}
		if start < i {
			b.words = append(b.words, wordHash(text, start, i))
		}
		if c < utf8.RuneSelf {
			folded[end] = c
			i, end = i+1, end+1
		} else {
			r, size := utf8.DecodeRuneInString(text[i:])
			r = foldRune(r)
			if r < utf8.RuneSelf {
				b.lookalikes = append(b.lookalikes, end)
			}
			i, end = i+size, end+utf8.EncodeRune(folded[end:], r)
		}
		start = i
	}
	if start < len(text) {
		b.words = append(b.words, wordHash(text, start, len(text)))
	}
	b.folded = asText(folded[:end])
	return b
}

// isBoundary reports whether a substring may start or end at a place: at the
// start or the end of the body, and beside any character that is a word
// boundary, which the substring may begin or end with.
func (b *body) isBoundary(at int) bool {
	return at == 0 || at == len(b.folded) || !b.isWord(at-1) || !b.isWord(at)
}

func (b *body) isWord(at int) bool {
	if !wordBytes[b.folded[at]] {
		return false
	}
	if len(b.lookalikes) == 0 {
		return true
	}
	_, found := slices.BinarySearch(b.lookalikes, at)
	return !found
}

// nextBoundary returns the first boundary at or after a place.
func (b *body) nextBoundary(at int) int {
	for !b.isBoundary(at) {
		at++
	}
	return at
}
