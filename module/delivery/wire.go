package delivery

import (
	"encoding/binary"
	"errors"
	"strings"
)

// What is kept in the queue is written in a form of its own: numbers as varints,
// texts with their lengths before them. The first byte tells the version.

// errGarbled is for what nobody of this version has written.
var errGarbled = errors.New("delivery: stored data cannot be read")

func appendNumber(dst []byte, n int64) []byte { return binary.AppendVarint(dst, n) }

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

func appendFlag(dst []byte, flag bool) []byte {
	if flag {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// wireReader reads what was appended. After the first thing that cannot be read
// all others are zero.
type wireReader struct {
	rest    string
	garbled bool
}

func (r *wireReader) fail() {
	r.rest, r.garbled = "", true
}

func (r *wireReader) byte() byte {
	if r.rest == "" {
		r.fail()
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

func (r *wireReader) flag() bool { return r.byte() == 1 }

func (r *wireReader) uvarint() uint64 {
	var n uint64
	for shift := 0; shift < 64; shift += 7 {
		b := r.byte()
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return n
		}
	}
	r.fail()
	return 0
}

func (r *wireReader) number() int64 {
	n := r.uvarint()
	return int64(n>>1) ^ -int64(n&1)
}

// count reads a number of things of which each takes at least a byte.
func (r *wireReader) count() int {
	n := r.number()
	if n < 0 || n > int64(len(r.rest)) {
		r.fail()
		return 0
	}
	return int(n)
}

// text returns a part of what is read, which stays in memory as long as it.
func (r *wireReader) text() string {
	n := r.uvarint()
	if n > uint64(len(r.rest)) {
		r.fail()
		return ""
	}
	s := r.rest[:n]
	r.rest = r.rest[n:]
	return s
}

func (r *wireReader) own() string { return strings.Clone(r.text()) }
