package speed

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// growth is the picture of the rates of operations by the number of rules: for
// each operation a panel with the floor and the demo host, on logarithmic scales
// that all panels share.
type growth struct {
	panels []panel
	sizes  []float64 // numbers of rules
	least  float64   // requests/s
	most   float64
}

// panel is an operation, with rates in the order of the sizes.
type panel struct {
	operation   string
	floor, demo []float64
}

// growth returns the picture of what was found.
func (r *report) growth() *growth {
	g := &growth{least: math.Inf(1)}
	for _, row := range r.sizes {
		g.add(row.name, float64(row.size), math.Round(of(row.floor, rate)), math.Round(of(row.demo, rate))) // as in the table
	}
	return g
}

func (g *growth) add(operation string, size, floor, demo float64) {
	i := slices.IndexFunc(g.panels, func(p panel) bool { return p.operation == operation })
	if i < 0 {
		i = len(g.panels)
		g.panels = append(g.panels, panel{operation: operation})
	}
	if !slices.Contains(g.sizes, size) {
		g.sizes = append(g.sizes, size)
	}
	p := &g.panels[i]
	p.floor, p.demo = append(p.floor, floor), append(p.demo, demo)
	g.least, g.most = min(g.least, floor, demo), max(g.most, floor, demo)
}

// Sizes in the picture, in pixels.
const (
	pictureWidth  = 880
	panelWidth    = 330
	panelHeight   = 190
	leftMargin    = 90
	topMargin     = 96
	panelDistance = 90 // from one to the next, in both directions
)

// The colours have contrast on the white ground, which the picture brings along,
// and differ in lightness, so that they can be told apart without colour, too.
const (
	demoColor  = "#0b5fb0"
	floorColor = "#8a8a8a"
)

// svg returns the picture.
func (g *growth) svg() []byte {
	rows := (len(g.panels) + 1) / 2
	height := topMargin + rows*(panelHeight+panelDistance)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" `+
		`font-family="Helvetica, Arial, sans-serif" font-size="13" fill="#222">`+"\n", pictureWidth, height, pictureWidth, height)
	b.WriteString(`<rect width="100%" height="100%" fill="#fff"/>` + "\n")
	text(&b, 24, 34, "start", `font-size="18" font-weight="bold"`, "Requests per second, by the number of rules that the user has")
	legend(&b, 24, 60)
	for i, p := range g.panels {
		x, y := leftMargin+i%2*(panelWidth+panelDistance), topMargin+i/2*(panelHeight+panelDistance)
		fmt.Fprintf(&b, `<g transform="translate(%d %d)">`+"\n", x, y)
		g.axes(&b, p.operation)
		g.line(&b, p.floor, floorColor, `stroke-dasharray="6 4"`)
		g.line(&b, p.demo, demoColor, "")
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

func legend(b *strings.Builder, x, y float64) {
	fmt.Fprintf(b, `<path d="M%g %gh36" stroke="%s" stroke-width="3"/>`+"\n", x, y-4, demoColor)
	text(b, x+44, y, "start", `font-weight="bold" fill="`+demoColor+`"`, "demo host")
	fmt.Fprintf(b, `<path d="M%g %gh36" stroke="%s" stroke-width="3" stroke-dasharray="6 4"/>`+"\n", x+140, y-4, floorColor)
	text(b, x+184, y, "start", "", "floor: echo and go-redis alone, the same bytes")
}

// axes draws the grid with its labels and the title of a panel.
func (g *growth) axes(b *strings.Builder, title string) {
	text(b, 0, -10, "start", `font-weight="bold"`, title)
	for _, rate := range marks(g.least, g.most) {
		y := g.y(rate)
		fmt.Fprintf(b, `<path d="M0 %.1fh%d" stroke="#ddd"/>`+"\n", y, panelWidth)
		text(b, -8, y+4, "end", "", withCommas(rate))
	}
	for _, size := range g.sizes {
		x := g.x(size)
		fmt.Fprintf(b, `<path d="M%.1f 0v%d" stroke="#ddd"/>`+"\n", x, panelHeight)
		text(b, x, panelHeight+18, "middle", "", withCommas(size))
	}
	text(b, panelWidth/2, panelHeight+38, "middle", "", "rules beside the defaults")
	fmt.Fprintf(b, `<text transform="translate(-64 %d) rotate(-90)" text-anchor="middle">requests/s</text>`+"\n", panelHeight/2)
}

// line draws rates in the order of the sizes.
func (g *growth) line(b *strings.Builder, rates []float64, color, style string) {
	points := make([]string, len(rates))
	for i, rate := range rates {
		points[i] = fmt.Sprintf("%.1f,%.1f", g.x(g.sizes[i]), g.y(rate))
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>`+"\n", g.x(g.sizes[i]), g.y(rate), color)
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="3" %s/>`+"\n", strings.Join(points, " "), color, style)
}

func (g *growth) x(size float64) float64 {
	return panelWidth * logarithmic(size, slices.Min(g.sizes), slices.Max(g.sizes))
}

func (g *growth) y(rate float64) float64 {
	all := marks(g.least, g.most)
	return panelHeight * (1 - logarithmic(rate, all[0], all[len(all)-1]))
}

// logarithmic is 0 for the least value and 1 for the most.
func logarithmic(value, least, most float64) float64 {
	return math.Log(value/least) / math.Log(most/least)
}

// marks are 1, 2 and 5 of each power of ten, from below the least to above the
// most.
func marks(least, most float64) (all []float64) {
	for power := math.Pow10(int(math.Floor(math.Log10(least)))); ; power *= 10 {
		for _, mark := range []float64{power, 2 * power, 5 * power} {
			if 5*mark > 2*least {
				all = append(all, mark)
			}
			if mark >= most {
				return all
			}
		}
	}
}

func text(b *strings.Builder, x, y float64, anchor, style, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" %s>%s</text>`+"\n", x, y, anchor, style, html.EscapeString(s))
}

// withCommas writes a whole number as 10,000.
func withCommas(n float64) string {
	s := strconv.Itoa(int(n))
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
