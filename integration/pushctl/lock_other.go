//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package main

import (
	"errors"
	"os"
)

// lock returns an error: this system has no flock.
func lock(*os.File) error { return errors.ErrUnsupported }
