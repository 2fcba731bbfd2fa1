package pages

import (
	"strings"
)

func tableRows(part string) (rows [][]string) {
	inTable := 0
	for line := range strings.Lines(part) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 3 {
			inTable = 0
			continue
		}
		if inTable++; inTable <= 2 {
			continue
		}
		cells = cells[1 : len(cells)-1]
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows
}
