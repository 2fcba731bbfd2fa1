//go:build unix

package redistest

import "syscall"

func (p *process) pause() error { return p.os.Signal(syscall.SIGSTOP) }

func (p *process) resume() error { return p.os.Signal(syscall.SIGCONT) }
