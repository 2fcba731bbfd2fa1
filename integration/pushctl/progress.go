package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress tells how far a command is: with a bar on a terminal, elsewhere with
// a line from time to time.
type progress struct {
	doing, things string // "checked", "keys"
	notes         io.Writer
	quiet         bool

	mu      sync.Mutex
	bar     *progressbar.ProgressBar // nil without a terminal
	done    int64
	total   int64 // about; 0 is unknown
	started time.Time
	told    time.Time
}

// lineInterval is how often a line is written.
const lineInterval = 10 * time.Second

func (c *call) newProgress(doing, things string) *progress {
	return &progress{doing: doing, things: things, notes: c.notes, quiet: c.quiet}
}

func (p *progress) start(total int64) {
	p.total, p.started, p.told = total, time.Now(), time.Now()
	if file, isFile := p.notes.(*os.File); p.quiet || !isFile || !term.IsTerminal(int(file.Fd())) {
		return
	}
	p.bar = progressbar.NewOptions64(max(total, 1),
		progressbar.OptionSetWriter(p.notes), progressbar.OptionSetDescription(p.doing), progressbar.OptionShowCount(),
		progressbar.OptionShowIts(), progressbar.OptionSetItsString(p.things), progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(), progressbar.OptionFullWidth())
}

func (p *progress) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += int64(n)
	switch {
	case p.quiet:
	case p.bar != nil:
		if p.done >= p.total { // it was about so many
			p.bar.ChangeMax64(p.done + 1)
		}
		_ = p.bar.Set64(p.done) // it is only shown
	case time.Since(p.told) >= lineInterval:
		p.told = time.Now()
		fmt.Fprintln(p.notes, p.line())
	}
}

// line tells it on one line.
func (p *progress) line() string {
	text := fmt.Sprintf("%s %d %s", p.doing, p.done, p.things)
	if p.total > 0 {
		text = fmt.Sprintf("%s %d of about %d %s", p.doing, p.done, max(p.done, p.total), p.things)
	}
	return fmt.Sprintf("%s, %.0f a second", text, float64(p.done)/time.Since(p.started).Seconds())
}

// stop takes the bar away.
func (p *progress) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bar != nil {
		_ = p.bar.Exit()
		_ = p.bar.Clear()
		fmt.Fprintln(p.notes, p.line())
	}
}
