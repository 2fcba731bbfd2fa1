package main

import (
	"io"
	"os"
	"strings"

	"github.com/rivo/uniseg"
	"golang.org/x/term"
)

// How many columns a line has: without a terminal, and at least.
const (
	usualWidth = 100
	leastWidth = 40
)

// widthOf returns how many columns fit on a line of w.
func widthOf(w io.Writer) int {
	if file, isFile := w.(*os.File); isFile {
		if columns, _, err := term.GetSize(int(file.Fd())); err == nil && columns > 0 {
			return max(columns, leastWidth)
		}
	}
	return usualWidth
}

// page is text that fits a width.
type page struct {
	text  strings.Builder
	width int
}

// line adds a label and a value. A value that does not fit goes on in further
// lines, below its own start.
func (p *page) line(label, value string) {
	room := max(p.width-uniseg.StringWidth(label), leastWidth/2)
	for first := true; first || value != ""; first = false {
		var part string
		part, value = breakLine(value, room)
		p.text.WriteString(strings.TrimRight(label+part, " ") + "\n")
		label = strings.Repeat(" ", uniseg.StringWidth(label))
	}
}

// breakLine cuts off what fits into some columns, if possible behind a space or
// comma. A character is never cut, and at least one is taken.
func breakLine(text string, columns int) (line, rest string) {
	used, end, fit := 0, 0, 0
	for left, state := text, -1; left != ""; {
		var cluster string
		var width int
		cluster, left, width, state = uniseg.FirstGraphemeClusterInString(left, state)
		if used += width; used > columns && end > 0 {
			if fit == 0 {
				fit = end
			}
			return text[:fit], text[fit:]
		}
		end += len(cluster)
		if cluster == " " || cluster == "," {
			fit = end
		}
	}
	return text, ""
}
