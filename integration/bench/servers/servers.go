// Package servers starts the servers that commands measure, each as a process
// of its own on a free port of 127.0.0.1, with its data in a temporary folder.
package servers

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// Patience is for what takes less than a second on a machine that is not busy.
const Patience = 15 * time.Second

// Bed is a Redis, and what was started beside it.
type Bed struct {
	Redis        *Process
	Client       *redis.Client // of the Redis
	RedisAddress string

	folder  string
	started []*Process
}

// Process is a server that runs.
type Process struct {
	Address string // where it listens
	cmd     *exec.Cmd
}

// New starts a Redis that saves nothing. Its program is the one that
// REDIS_SERVER names, as in the tests. The bed needs closing.
func New(ctx context.Context) (b *Bed, err error) {
	b = new(Bed)
	defer func() {
		if err != nil {
			b.Close()
			b, err = nil, fmt.Errorf("cannot start a Redis: %w", err)
		}
	}()
	if b.folder, err = os.MkdirTemp("", "testbed-*"); err != nil {
		return b, err
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return b, err
	}
	b.RedisAddress = free.Addr().String()
	_, port, _ := net.SplitHostPort(b.RedisAddress)
	if err := free.Close(); err != nil {
		return b, err
	}
	program := cmp.Or(os.Getenv("REDIS_SERVER"), "redis-server")
	cmd := exec.Command(program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	cmd.Dir = b.folder
	if err := cmd.Start(); err != nil {
		return b, err
	}
	b.Redis = &Process{b.RedisAddress, cmd}
	b.started = append(b.started, b.Redis)
	b.Client = redis.NewClient(&redis.Options{Addr: b.RedisAddress, ReadTimeout: time.Minute})
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for b.Client.Ping(ctx).Err() != nil {
		if ctx.Err() != nil {
			return b, ctx.Err()
		}
		time.Sleep(20 * time.Millisecond)
	}
	return b, nil
}

// DemoPackage is the demo host.
const DemoPackage = "github.com/pushfx/pushfx/integration/homeserver"

// Build builds a command of the module and returns its program.
func (b *Bed) Build(ctx context.Context, packagePath string) (program string, err error) {
	program = filepath.Join(b.folder, filepath.Base(packagePath))
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, packagePath).CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return program, nil
}

// StartDemo starts a demo host on the Redis. Without a program it is built.
func (b *Bed) StartDemo(ctx context.Context, program string, flags ...string) (*Process, error) {
	if program == "" {
		var err error
		if program, err = b.Build(ctx, DemoPackage); err != nil {
			return nil, err
		}
	}
	flags = append([]string{"-listen", "127.0.0.1:0", "-redis-mode", "standalone", "-redis", b.RedisAddress, "-log-level", "error"}, flags...)
	return b.Start(program, " listens on http://", flags...)
}

// Start starts a program that writes its address on stdout, behind a greeting.
func (b *Bed) Start(program, greeting string, args ...string) (*Process, error) {
	cmd := exec.Command(program, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd}
	b.started = append(b.started, p)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if _, address, found := strings.Cut(lines.Text(), greeting); found {
			p.Address = strings.TrimSpace(address)
			go io.Copy(io.Discard, out)
			return p, nil
		}
	}
	return nil, fmt.Errorf("%s does not say where it listens", filepath.Base(program))
}

// Stop ends the process.
func (p *Process) Stop() {
	if p.cmd.ProcessState != nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	end := time.AfterFunc(Patience, func() { _ = p.cmd.Process.Kill() })
	defer end.Stop()
	_ = p.cmd.Wait()
}

// Kill ends the process at once, without a chance to do anything more.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// Resident is how many bytes of RAM the process has, 0 where the system does not
// tell.
func (p *Process) Resident() int64 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	kilobytes, _ := strconv.ParseInt(number, 10, 64)
	return kilobytes << 10
}

// CPU is what the process has spent so far, to 10 ms; 0 where the system does not
// tell.
func (p *Process) CPU() time.Duration {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	_, rest, _ := strings.Cut(string(stat), ") ") // the name of the program may have spaces
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	const tick = 10 * time.Millisecond // USER_HZ is 100 wherever Go runs
	return time.Duration(user+system) * tick
}

// RedisCPU is what the Redis has spent so far, with all of its threads and in the
// one that executes commands.
func (b *Bed) RedisCPU(ctx context.Context) (all, main time.Duration, err error) {
	info, err := b.Client.InfoMap(ctx, "cpu").Result()
	if err != nil {
		return 0, 0, err
	}
	seconds := func(names ...string) (sum time.Duration) {
		for _, name := range names {
			part, _ := time.ParseDuration(info["CPU"][name] + "s") // none before Redis 6.2
			sum += part
		}
		return sum
	}
	return seconds("used_cpu_user", "used_cpu_sys"), seconds("used_cpu_user_main_thread", "used_cpu_sys_main_thread"), nil
}

// Close ends what was started and removes what it left.
func (b *Bed) Close() {
	if b.Client != nil {
		b.Client.Close()
	}
	for _, p := range b.started {
		p.Stop()
	}
	os.RemoveAll(b.folder)
}
