package main

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

const columns = 2

// arrange draws each panel with what its queries give, in rows.
func arrange(panels []panel, seen []samples) ([][]*plot.Plot, error) {
	rows := make([][]*plot.Plot, (len(panels)+columns-1)/columns)
	for i := range rows {
		rows[i] = make([]*plot.Plot, columns)
	}
	for i, p := range panels {
		drawn, err := drawPanel(p, seen)
		if err != nil {
			return nil, fmt.Errorf("panel %q: %w", p.Title, err)
		}
		rows[i/columns][i%columns] = drawn
	}
	return rows, nil
}

func drawPanel(p panel, seen []samples) (*plot.Plot, error) {
	picture := plot.New()
	picture.Title.Text = p.Title
	picture.X.Label.Text, picture.Y.Label.Text = "s", unit(p.FieldConfig.Defaults.Unit)
	picture.Y.Min, picture.Legend.Top = 0, true
	picture.Add(plotter.NewGrid())
	colour := 0
	for _, target := range p.Targets {
		series, err := evaluate(target.Expr, target.LegendFormat, seen)
		if err != nil {
			return nil, err
		}
		for _, name := range slices.Sorted(maps.Keys(series)) {
			points := points(series[name])
			if len(points) == 0 {
				continue
			}
			line, err := plotter.NewLine(points)
			if err != nil {
				return nil, err
			}
			line.Color, line.Width = plotutil.Color(colour), vg.Points(1.5)
			line.Dashes = plotutil.Dashes(colour / 7)
			colour++
			picture.Add(line)
			picture.Legend.Add(name, line)
		}
	}
	picture.Y.Min = 0
	picture.Y.Max = max(picture.Y.Max*1.6, 1e-4) // room for the legend
	picture.Legend.TextStyle.Font.Size = vg.Points(7)
	return picture, nil
}

func unit(name string) string {
	switch name {
	case "s":
		return "seconds"
	case "reqps", "ops":
		return "per second"
	}
	return ""
}

func points(values []float64) (all plotter.XYs) {
	for i, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			all = append(all, plotter.XY{X: float64(i) * step.Seconds(), Y: v})
		}
	}
	return all
}

// write writes the panels as an SVG picture.
func write(panels []panel, seen []samples, out string) error {
	rows, err := arrange(panels, seen)
	if err != nil {
		return err
	}
	canvas := vgsvg.New(vg.Length(columns)*6*vg.Inch, vg.Length(len(rows))*2.6*vg.Inch)
	tiles := draw.Tiles{Rows: len(rows), Cols: columns, PadX: vg.Points(12), PadY: vg.Points(12)}
	for i, row := range plot.Align(rows, tiles, draw.New(canvas)) {
		for j, tile := range row {
			if rows[i][j] != nil {
				rows[i][j].Draw(tile)
			}
		}
	}
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := canvas.WriteTo(file); err != nil {
		return err
	}
	return file.Close()
}
