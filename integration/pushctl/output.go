package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// maxColumns is the width of a terminal.
const maxColumns = 100

// writeTable writes a table with headings. If a row is wider than a terminal, it writes a
// block for each row instead.
func writeTable(w io.Writer, head []string, rows [][]string) error {
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		fmt.Fprintln(table, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(text.String()) {
		if utf8.RuneCountInString(line) > maxColumns+1 { // with the line feed
			return writeBlocks(w, head, rows)
		}
	}
	_, err := text.WriteTo(w)
	return err
}

// writeBlocks writes a block for each row: the first cell, and the other cells below it.
func writeBlocks(w io.Writer, head []string, rows [][]string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	longest := 0
	for _, name := range head[1:] {
		longest = max(longest, len(name))
	}
	for i, row := range rows {
		if i > 0 {
			fmt.Fprintln(table)
		}
		fmt.Fprintln(table, row[0])
		for n, cell := range row[1:] {
			lines := wrapped(cell, maxColumns-len("    ")-longest)
			fmt.Fprintf(table, "  %s\t%s\n", strings.ToLower(head[n+1]), lines[0])
			for _, line := range lines[1:] {
				fmt.Fprintf(table, "\t%s\n", line)
			}
		}
	}
	return table.Flush()
}

// wrapped splits a text at spaces into lines of at most width characters, if it can.
func wrapped(text string, width int) (lines []string) {
	line := ""
	for word := range strings.SplitSeq(text, " ") {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, line)
}

// writeJSON writes a value and a line feed. It escapes the characters that [printable] replaces, so that a JSON parser
// reads the original text.
func writeJSON(w io.Writer, value any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return err
	}
	_, err := w.Write(escaped(text.Bytes()))
	return err
}

// escaped escapes the unprintable characters in JSON, where they occur only in strings. The encoder has already escaped
// control characters below the space.
func escaped(text []byte) []byte {
	from := bytes.IndexFunc(text, isEscaped)
	if from < 0 {
		return text
	}
	dst := append(make([]byte, 0, len(text)+64), text[:from]...)
	for _, r := range string(text[from:]) {
		if !isEscaped(r) {
			dst = utf8.AppendRune(dst, r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			dst = fmt.Appendf(dst, `\u%04x`, unit)
		}
	}
	return dst
}

func isEscaped(r rune) bool { return r > '~' && (r == utf8.RuneError || !unicode.IsPrint(r)) }

// result writes a result, as JSON or as text. It returns an error if the result is incomplete, or errProblems if there
// are problems.
func (c *call) result(value any, writeText func(io.Writer) error, hasProblems bool) (err error) {
	buffered := bufio.NewWriter(c.out)
	if c.asJSON {
		err = writeJSON(buffered, value)
	} else {
		err = writeText(buffered)
	}
	if err = errors.Join(err, buffered.Flush(), c.incomplete()); err == nil && hasProblems {
		err = errProblems
	}
	return err
}

// writeLine writes a line of -list: a value as JSON, or cells as text.
func (c *call) writeLine(value any, cells ...string) error {
	if c.asJSON {
		return writeJSON(c.out, value)
	}
	for i, cell := range cells {
		cells[i] = printable(cell)
	}
	_, err := fmt.Fprintln(c.out, strings.Join(cells, "\t"))
	return err
}

// ago returns the time since t as a text, or "-" for a zero time.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return now.Sub(t).Round(time.Second).String()
}

func duration(seconds float64, unit time.Duration) string {
	return time.Duration(seconds * float64(time.Second)).Round(unit).String()
}

// timeOf returns the time of a version or claim.
func timeOf(microseconds int64) string {
	return time.UnixMicro(microseconds).UTC().Format(time.RFC3339)
}

// printable replaces the characters of a user's text that control a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
