package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

const logLines = 20 // of a server's log, in messages

var errPortTaken = errors.New("the port is taken")

type process struct {
	os      *os.Process
	logPath string
	done    chan struct{} // closed when the process has ended and is reaped
	exit    error         // set before done is closed
}

func startProcess(binary, dir string, args []string) (*process, error) {
	log, err := os.CreateTemp(dir, "server-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(binary, args...)
	cmd.Dir = dir
	cmd.Stdout = log
	cmd.Stderr = log
	cmd.SysProcAttr = endWithParent()

	p := &process{logPath: log.Name(), done: make(chan struct{})}
	started := make(chan error)
	go p.run(cmd, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run keeps its OS thread: Linux sends the signal of endWithParent when the thread that
// started the process ends.
func (p *process) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	p.os = cmd.Process
	started <- err
	if err != nil {
		return
	}
	p.exit = cmd.Wait()
	close(p.done)
}

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill ends the process, even a paused one.
func (p *process) kill() error {
	if err := p.os.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

func (p *process) exitError() error {
	// The text depends on the C library.
	if log := p.log(); strings.Contains(log, "Address already in use") || strings.Contains(log, "Address in use") {
		return errPortTaken
	}
	if p.exit == nil {
		return errors.New("the server ended without an error")
	}
	return fmt.Errorf("the server ended: %w", p.exit)
}

func (p *process) log() string {
	content, err := os.ReadFile(p.logPath)
	if err != nil {
		return "cannot read the log: " + err.Error()
	}
	return string(content)
}

func (p *process) lastLog() string {
	lines := strings.Split(strings.TrimSpace(p.log()), "\n")
	lines = lines[max(0, len(lines)-logLines):]
	return "last log lines of process " + fmt.Sprint(p.os.Pid) + ":\n\t" + strings.Join(lines, "\n\t")
}
