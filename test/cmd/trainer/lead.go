package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"

	"tpuvisor.dev/tpuvisor/test/libtpusim"
)

// firstExtra is the descriptor that the first of a process's ExtraFiles gets.
const firstExtra = 3

// lead starts the processes of the job and waits for them all. It returns the
// status of the first that ended badly: the others are left to go on.
func lead(o *options) int {
	mesh := libtpusim.NewMesh()
	var wait sync.WaitGroup
	var once sync.Once
	status := 0
	for process := range o.processes {
		cmd, err := startProcess(o, process, mesh)
		if err != nil {
			fmt.Fprintln(os.Stderr, "trainer:", err)
			return exitOther
		}
		wait.Go(func() {
			if err := cmd.Wait(); err != nil {
				fmt.Fprintf(os.Stderr, "trainer: process %d: %v\n", process, err)
				once.Do(func() { status = statusOf(err) })
			}
		})
	}
	wait.Wait()
	return status
}

func statusOf(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exit.ExitCode()
	}
	return exitOther
}

// startProcess starts one process, and a goroutine for each of its members'
// connections to the mesh.
func startProcess(o *options, process int, mesh *libtpusim.LocalMesh) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, append(os.Args[1:], "-process", strconv.Itoa(process))...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	for i := range o.runtimes {
		wordsIn, wordsOut, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		repliesIn, repliesOut, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, repliesIn, wordsOut)
		go meet(mesh, process*o.runtimes+i, wordsIn, repliesOut)
	}
	err = cmd.Start()
	for _, f := range cmd.ExtraFiles {
		f.Close() // so that the pipe ends with the process
	}
	return cmd, err
}

// What a member says to the mesh, and what it hears.
const (
	sayDetached = 'D'
	sayRestore  = 'R'
	hearDone    = '.'
)

// meet is the mesh's end of one member's connection.
func meet(mesh *libtpusim.LocalMesh, rank int, words, replies *os.File) {
	defer mesh.Gone(rank)
	defer replies.Close()
	word := make([]byte, 1)
	for {
		if _, err := words.Read(word); err != nil {
			return
		}
		switch word[0] {
		case sayDetached:
			mesh.Detached(rank)
		case sayRestore:
			if err := mesh.Restore(context.Background(), rank); err != nil {
				return
			}
		}
		if _, err := replies.Write([]byte{hearDone}); err != nil {
			return
		}
	}
}

// remoteMesh is the member's end.
type remoteMesh struct {
	words, replies *os.File
}

func newRemoteMesh(index int) *remoteMesh {
	return &remoteMesh{
		replies: os.NewFile(uintptr(firstExtra+2*index), "mesh-replies"),
		words:   os.NewFile(uintptr(firstExtra+2*index+1), "mesh-words"),
	}
}

// Detached implements libtpusim.Mesh. It returns when the mesh knows, since the
// others must not meet without this member from then on.
func (m *remoteMesh) Detached(int) {
	if err := m.say(sayDetached); err != nil {
		fmt.Fprintln(os.Stderr, "trainer:", err)
	}
}

// Restore implements libtpusim.Mesh.
func (m *remoteMesh) Restore(context.Context, int) error { return m.say(sayRestore) }

func (m *remoteMesh) say(word byte) error {
	if _, err := m.words.Write([]byte{word}); err != nil {
		return fmt.Errorf("mesh is gone: %w", err)
	}
	if _, err := m.replies.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("mesh is gone: %w", err)
	}
	return nil
}
