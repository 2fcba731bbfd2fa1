//go:build !linux

package redistest

import "syscall"

// endWithParent does nothing: servers survive the test binary.
func endWithParent() *syscall.SysProcAttr { return nil }
