package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// maxColumns is how wide a table may be.
const maxColumns = 100

// writeTable writes a table with a heading for each column or, where a row is too wide
// for a terminal, a block for each row. Empty cells at the end of a row are left out.
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
		if utf8.RuneCountInString(line) > maxColumns+1 { // with its end
			return writeBlocks(w, head, rows)
		}
	}
	_, err := text.WriteTo(w)
	return err
}

// writeBlocks writes the first cell of each row, and the others below it.
func writeBlocks(w io.Writer, head []string, rows [][]string) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, row := range rows {
		if i > 0 {
			fmt.Fprintln(table)
		}
		fmt.Fprintln(table, row[0])
		for n, cell := range row[1:] {
			fmt.Fprintf(table, "  %s\t%s\n", strings.ToLower(head[n+1]), cell)
		}
	}
	return table.Flush()
}
