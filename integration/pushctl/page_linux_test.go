package main

import (
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/rivo/uniseg"
)

func TestTheWidthIsThatOfTheTerminal(t *testing.T) {
	t.Parallel()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminal to ask: ", err)
	}
	defer terminal.Close()
	for columns, want := range map[uint16]int{80: 80, 200: 200, 10: leastWidth, 0: usualWidth} {
		size := [4]uint16{24, columns}
		_, _, failed := syscall.Syscall(syscall.SYS_IOCTL, terminal.Fd(), syscall.TIOCSWINSZ, uintptr(unsafe.Pointer(&size)))
		if failed != 0 {
			t.Fatal(failed)
		}
		if got := widthOf(terminal); got != want {
			t.Errorf("a terminal of %d columns: got %d, want %d", columns, got, want)
		}
	}
	if got := widthOf(io.Discard); got != usualWidth {
		t.Errorf("without a terminal: got %d", got)
	}
}

func TestShowFitsTheTerminal(t *testing.T) {
	t.Parallel()
	b := onOne(t)
	b.storeForGolden()
	shown, err := (&call{backend: b.backend}).shown(t.Context(), alice, func(string) string { return "hash" })
	if err != nil {
		t.Fatal(err)
	}
	for _, width := range []int{leastWidth, 80, 200} {
		for line := range strings.Lines(shown.page(width)) {
			if got := uniseg.StringWidth(strings.TrimSuffix(line, "\n")); got > width {
				t.Errorf("%d columns in a terminal of %d: %s", got, width, line)
			}
		}
	}
}
