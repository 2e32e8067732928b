package faults

// Outcomes that many of these rows share.
var (
	nobodyAsked = &Outcome{Error: NoRuntime, Then: Running}
	notFound    = &Outcome{Error: Lost, Then: Named}
)

// lock are rows of the lock handshake: ACTION is LOCK and UNLOCK.
var lock = []Row{
	{ID: "lock/refused", What: "says no to it", Fault: "refuse@ACTION:rank=RANK", Detach: refusedRunning, Attach: refusedNamed, Lock: true, In: Both},
	{ID: "lock/garbage", What: "does it, and answers with a frame that holds no message", Fault: "garbage@ACTION:rank=RANK", Detach: garbledRunning, Attach: garbledRunning, Lock: true, In: Both},
	{ID: "lock/never-answers", What: "never answers, and does nothing", Fault: "stall@ACTION:rank=RANK", Detach: silentNamed, Attach: silentNamed, Lock: true, In: InProcess},
	{ID: "lock/after-the-deadline", What: "does it, and answers after twice the limit", Fault: "late=2L@ACTION:rank=RANK", Detach: silentRunning, Attach: silentRunning, Lock: true, In: InProcess},
	{ID: "lock/aborts", What: "its process ends", Fault: "abort@ACTION:rank=RANK", Detach: exitedGone, Attach: exitedGone, Lock: true, Real: true, In: InProcess},
	{ID: "lock/checkpoint-refused", What: "says no to CHECKPOINT, when all are LOCKED", Fault: "refuse@CHECKPOINT:rank=RANK", Detach: refusedRunning, Lock: true, In: Both},
	{ID: "lock/checkpoint-garbage", What: "answers CHECKPOINT with no message, when all are LOCKED", Fault: "garbage@CHECKPOINT:rank=RANK", Detach: garbledRunning, Lock: true, In: InProcess},
	{ID: "lock/restore-refused", What: "says no to RESTORE, when it was LOCKED", Fault: "refuse@RESTORE:rank=RANK", Attach: refusedNamed, Lock: true, In: InProcess},
	{ID: "lock/state-unknown", What: "answers GETSTATE with a state that nobody knows", Fault: "wrongstate=77@GETSTATE:rank=RANK", Detach: &Outcome{Error: WrongState, Then: Running}, Lock: true, In: InProcess},
	{ID: "lock/found-locked", What: "is LOCKED by somebody else already", Detach: fine, Lock: true, In: InProcess},
	{ID: "lock/found-detached", What: "is DETACHED by somebody else already", Detach: fine, Lock: true, In: InProcess},
}

// names are rows about how runtimes are found.
var names = []Row{
	{ID: "names/wrong-hex", What: "a digit of the thread's name is none", Detach: nobodyAsked, In: InProcess},
	{ID: "names/sign", What: "a number in the thread's name has a sign", Detach: nobodyAsked, In: InProcess},
	{ID: "names/too-long", What: "the thread's name has a digit too many", Detach: nobodyAsked, In: InProcess},
	{ID: "names/not-open", What: "a descriptor is not open", Detach: nobodyAsked, In: Both},
	{ID: "names/wrong-direction", What: "the two descriptors are exchanged", Detach: nobodyAsked, In: Both},
	{ID: "names/one-pipe", What: "both descriptors are ends of one pipe", Detach: nobodyAsked, In: Both},
	{ID: "names/regular-file", What: "a descriptor is a file", Detach: nobodyAsked, In: Both},
	{ID: "names/directory", What: "a descriptor is a folder", Detach: nobodyAsked, In: Both},
	{ID: "names/memfd", What: "a descriptor is a file in memory", Detach: nobodyAsked, In: Both},
	{ID: "names/eventfd", What: "a descriptor is an eventfd", Detach: nobodyAsked, In: Both},
	{ID: "names/timerfd", What: "a descriptor is a timerfd", Detach: nobodyAsked, In: Both},
	{ID: "names/epoll", What: "a descriptor is an epoll instance", Detach: nobodyAsked, In: Both},
	{ID: "names/inotify", What: "a descriptor is an inotify instance", Detach: nobodyAsked, In: Both},
	{ID: "names/socket", What: "a descriptor is a socket", Detach: nobodyAsked, In: Both},
	{ID: "names/tpu", What: "a descriptor is the TPU", Detach: nobodyAsked, In: Both},
	{ID: "names/proc-file", What: "a descriptor is a file of /proc", Detach: nobodyAsked, In: Sandboxed},
	{ID: "names/host-file", What: "a descriptor is a file of the host's file system", Detach: nobodyAsked, In: Sandboxed},
	{ID: "names/terminal", What: "a descriptor is a terminal", Detach: nobodyAsked, In: Sandboxed},
	{ID: "names/above-1023", What: "the descriptors are above 1023", Detach: fine, In: Both},
	{ID: "names/highest", What: "the descriptors are the highest that a name can tell, and others above are open", Detach: fine, In: InProcess},
	{ID: "names/own-table", What: "the thread has descriptors of its own", Detach: fine, In: Both},
	{ID: "names/inherited-by-threads", What: "other threads have the name too", Detach: fine, In: InProcess},
	{ID: "names/inherited-by-children", What: "a child has the name, the pipes and the TPU too", Detach: fine, In: InProcess},
	{ID: "names/two-in-one-process", What: "there are two runtimes in one process", Detach: fine, In: Both},
	{ID: "names/closed-meanwhile", What: "closes a descriptor during CHECKPOINT", Detach: &Outcome{Error: Lost, Then: Named, Later: true}, In: InProcess},
	{ID: "names/reused-meanwhile", What: "closes a descriptor during CHECKPOINT, and has another pipe there", Detach: &Outcome{Error: Lost, Then: Named, Later: true}, In: InProcess},
	{ID: "names/reused-after", What: "closes a descriptor after CHECKPOINT, and has a file there", Attach: notFound, In: InProcess},
	{ID: "names/thousands-of-threads", What: "thousands of threads have the name", Detach: fine, In: Both},
	{ID: "names/too-many-runtimes", What: "more than a thousand threads name pipes of their own", Detach: &Outcome{Error: TooMany, Then: Running}, In: InProcess},
}

// who are rows about who holds TPUs.
var who = []Row{
	{ID: "who/no-runtime", What: "a process holds a TPU and has no runtime", Detach: nobodyAsked, In: Both},
	{ID: "who/inherits", What: "a process holds a TPU that it has from one with a runtime", Detach: fine, In: Both},
	{ID: "who/opens-meanwhile", What: "a process opens a TPU during CHECKPOINT", Detach: &Outcome{Error: Reopened, Then: Running}, In: InProcess},
	{ID: "who/exec-session", What: "a runtime is in a process of runsc exec, which a restore ends", Attach: &Outcome{}, In: Both},
	{ID: "who/exits-between", What: "a process exits between CHECKPOINT and RESTORE", Attach: &Outcome{Then: Gone}, Real: true, In: InProcess},
	{ID: "who/several-containers", What: "one of several containers of the sandbox has a runtime that says no", Fault: "refuse@CHECKPOINT:rank=RANK", Detach: refusedRunning, In: Both},
	{ID: "who/joins-without", What: "a container with TPUs joins a sandbox that was started without", Detach: &Outcome{Error: Some, Then: Running}, In: Sandboxed},
	{ID: "who/come-and-go", What: "processes and threads come and go all the time", Detach: fine, In: Both},
	{ID: "who/leader-gone", What: "the process's first thread has ended, others live on", Detach: fine, Real: true, In: Both},
}

// operator are rows about what the operator does.
var operator = []Row{
	{ID: "operator/paused", What: "the sandbox is paused", Detach: fine, In: Both},
	{ID: "operator/paused-twice", What: "the sandbox is paused twice", Detach: &Outcome{Error: PausedTwice, Then: Running}, In: InProcess},
	{ID: "operator/pauses-meanwhile", What: "pauses the sandbox during CHECKPOINT", Detach: fine, In: Both},
	{ID: "operator/two-at-once", What: "begins another checkpoint during CHECKPOINT", Detach: &Outcome{Error: Busy, Then: Running}, In: Both},
	{ID: "operator/kills-meanwhile", What: "kills the sandbox during CHECKPOINT", Fault: "stall@CHECKPOINT:rank=RANK", Detach: &Outcome{Error: Exiting, Then: Gone, Others: Gone}, Real: true, In: Both},
	{ID: "operator/deletes-meanwhile", What: "deletes the container during CHECKPOINT", Fault: "stall@CHECKPOINT:rank=RANK", Detach: &Outcome{Error: Some, Then: Gone, Others: Gone}, In: Sandboxed},
	{ID: "operator/interrupts", What: "interrupts the checkpoint command during CHECKPOINT", Fault: "late=3s@CHECKPOINT:rank=RANK", Detach: &Outcome{Error: Some, Then: Running}, In: Sandboxed},
	{ID: "operator/kills-the-command", What: "kills the checkpoint command during CHECKPOINT", Fault: "late=3s@CHECKPOINT:rank=RANK", Detach: &Outcome{Error: Some, Then: Running}, In: Sandboxed},
	{ID: "operator/kills-paused", What: "kills a sandbox that is paused", Detach: &Outcome{Then: Gone, Others: Gone}, In: Sandboxed},
	{ID: "operator/kills-ended", What: "kills a container that has ended", Detach: &Outcome{Error: Some, Then: Gone, Others: Gone}, In: Sandboxed},
	{ID: "operator/resumes-unpaused", What: "resumes a sandbox that is not paused", Attach: fine, In: Both},
	{ID: "operator/again-after-failure", What: "makes a checkpoint right after one that failed", Fault: "refuse@CHECKPOINT:rank=RANK,nth=1", Detach: fine, In: Both},
	{ID: "operator/again-before-the-answer", What: "makes a checkpoint while a runtime has not answered the one that failed", Fault: "stall@CHECKPOINT:rank=RANK,nth=1", Detach: &Outcome{Error: Unread, Then: Named}, In: InProcess},
}

// host are rows about the host.
var host = []Row{
	{ID: "host/save-fails", What: "the save fails when all are detached", Detach: &Outcome{Error: Some, Then: Running}, In: InProcess},
	{ID: "host/later-hook-fails", What: "what runs after the runtimes have let go fails", Detach: &Outcome{Error: Some, Then: Running}, In: InProcess},
	{ID: "host/groups-held", What: "somebody holds the TPUs' groups when they are to be given back; the next resume succeeds", Attach: fine, In: InProcess},
	{ID: "host/directory-unwritable", What: "the image directory cannot be written to", Detach: &Outcome{Error: Some, Then: Running}, In: Sandboxed},
	{ID: "host/disk-full", What: "the disk is full before the image is whole", Detach: &Outcome{Error: Some, Then: Running}, In: Sandboxed},
	{ID: "host/files-there", What: "the image directory holds an image already", Detach: &Outcome{Error: Some, Then: Running}, In: Sandboxed},
	{ID: "host/own-image-there", What: "the image directory holds an earlier image of the container; a failed checkpoint leaves it, the next one replaces it", Detach: fine, In: Sandboxed},
	{ID: "host/filestore-there", What: "a container is restored where one of its name has left what it wrote", Attach: fine, In: Sandboxed},
	{ID: "host/exec-missing", What: "the program to run before the save is not there", Detach: &Outcome{Error: Some, Then: Running}, In: Sandboxed},
	{ID: "host/exec-fails", What: "the program to run before the save fails", Detach: &Outcome{Error: Some, Then: Running}, In: Sandboxed},
	{ID: "host/image-truncated", What: "the image to restore from is cut off", Attach: &Outcome{Error: Some}, In: Sandboxed},
	{ID: "host/image-foreign", What: "the image to restore from is none", Attach: &Outcome{Error: Some}, In: Sandboxed},
	{ID: "host/image-older", What: "the image to restore from was made by another version", Attach: &Outcome{Error: Some}, In: Sandboxed},
}

// restoring are rows about the end of a sandbox that is being restored. What happens
// to its runtimes is told by the rows above.
var restoring = []Row{
	{ID: "restoring/refuses", What: "one of eight says no to RESTORE: the sandbox ends", Fault: "refuse@RESTORE:rank=RANK,text=chip%20is%20hot", Attach: &Outcome{Error: Refused, Then: Gone, Others: Gone}, In: Sandboxed},
	{ID: "restoring/dies", What: "one of eight dies at RESTORE: the sandbox ends", Fault: "abort@RESTORE:rank=RANK", Attach: &Outcome{Error: Exited, Then: Gone, Others: Gone}, In: Sandboxed},
	{ID: "restoring/never-answers", What: "one of eight never answers RESTORE: the sandbox ends", Fault: "stall@RESTORE:rank=RANK", Attach: &Outcome{Error: NoAnswer, Then: Gone, Others: Gone}, In: Sandboxed},
}
