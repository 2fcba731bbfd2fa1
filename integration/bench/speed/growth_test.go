package speed

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite growth.svg with what the page of the bench says")

// rowsOf returns the cells of the named columns of the table that has them all.
func rowsOf(t *testing.T, page string, columns ...string) (rows [][]string) {
	t.Helper()
	places := make([]int, len(columns))
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "| "), " | ")
		isHeader := true
		for i, column := range columns {
			at := slices.Index(cells, column)
			isHeader = isHeader && at >= 0
			if isHeader {
				places[i] = at
			}
		}
		switch {
		case isHeader:
			rows = [][]string{}
		case rows != nil && !strings.HasPrefix(line, "|"):
			return rows
		case rows != nil && !strings.HasPrefix(line, "|---"):
			row := []string{cells[0]}
			for _, at := range places {
				row = append(row, cells[at])
			}
			rows = append(rows, row)
		}
	}
	t.Fatalf("no table with the columns %q", columns)
	return nil
}

// The picture shows the table of the page that it stands on.
func TestThePictureShowsTheTable(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := (&report{}).growth()
	for _, row := range rowsOf(t, string(page), "rules beside the defaults", "floor/s", "demo host/s") {
		var n [3]float64
		for i, cell := range row[1:] {
			if n[i], err = strconv.ParseFloat(cell, 64); err != nil {
				t.Fatal(err)
			}
		}
		shown.add(row[0], n[0], n[1], n[2])
	}
	want := shown.svg()
	if *update {
		if err := os.WriteFile("growth.svg", want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile("growth.svg"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("growth.svg shows something else than the page of the bench (%v): run this test with -update", err)
	}
}

// Each point lies within its panel, and what is drawn is XML.
func TestThePictureCutsNothingOff(t *testing.T) {
	t.Parallel()
	g := (&report{}).growth()
	for _, operation := range []string{"GET <all> & more", "PUT"} {
		for i, size := range []float64{10, 9900} {
			g.add(operation, size, float64(31000-i*30000), float64(900-i*899))
		}
	}
	points := 0
	for decoder := xml.NewDecoder(bytes.NewReader(g.svg())); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		circle, isElement := token.(xml.StartElement)
		if !isElement || circle.Name.Local != "circle" {
			continue
		}
		points++
		for i, most := range []float64{panelWidth, panelHeight} {
			if at, err := strconv.ParseFloat(circle.Attr[i].Value, 64); err != nil || at < 0 || at > most {
				t.Errorf("a point is at %s = %s, want at most %v", circle.Attr[i].Name.Local, circle.Attr[i].Value, most)
			}
		}
	}
	if points != 8 {
		t.Errorf("got %d points, want 8", points)
	}
}
