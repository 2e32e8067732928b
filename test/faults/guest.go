package faults

// Outcomes that many rows share.
var (
	fine           = &Outcome{Then: Running}
	refusedRunning = &Outcome{Error: Refused, Then: Running}
	refusedNamed   = &Outcome{Error: Refused, Then: Named}
	garbledRunning = &Outcome{Error: NotMessage, Then: Running}
	tooLarge       = &Outcome{Error: TooLarge, Then: Running}
	silentRunning  = &Outcome{Error: NoAnswer, Then: Running}
	silentNamed    = &Outcome{Error: NoAnswer, Then: Named}
	exitedNamed    = &Outcome{Error: Exited, Then: Named}
	exitedGone     = &Outcome{Error: Exited, Then: Gone}
)

// answers are rows of runtimes that answer, but not as they should.
var answers = []Row{
	{ID: "answers/refused", What: "says no, with the state that it is in", Fault: "refuse@ACTION:rank=RANK", Detach: refusedRunning, Attach: refusedNamed, In: Both},
	{ID: "answers/refused-no-state", What: "says no, without a state", Fault: "refuse@ACTION:rank=RANK,state=UNSPECIFIED", Detach: refusedRunning, Attach: refusedNamed, In: Both},
	{ID: "answers/refused-running", What: "says no, and RUNNING", Fault: "refuse@ACTION:rank=RANK,state=RUNNING", Detach: refusedRunning, Attach: refusedNamed, In: Both},
	{ID: "answers/refused-locked", What: "says no, and LOCKED", Fault: "refuse@ACTION:rank=RANK,state=LOCKED", Detach: refusedRunning, Attach: refusedNamed, In: Both},
	{ID: "answers/refused-restoring", What: "says no, and RESTORING", Fault: "refuse@ACTION:rank=RANK,state=RESTORING", Detach: refusedRunning, Attach: refusedNamed, In: Both},
	{ID: "answers/refused-unknown", What: "says no, and a state that nobody knows", Fault: "refuse@ACTION:rank=RANK,state=77", Detach: refusedRunning, Attach: refusedNamed, In: Both},
	{ID: "answers/refused-detached", What: "says no, and DETACHED, which is true", Fault: "refuse@CHECKPOINT:rank=RANK,state=DETACHED,act=true", Detach: refusedRunning, In: Both},
	{ID: "answers/refused-faulted", What: "says no, and FAULTED", Fault: "refuse@ACTION:rank=RANK,state=FAULTED", Detach: refusedNamed, Attach: refusedNamed, In: Both},
	{ID: "answers/refused-at-length", What: "says no, in 1 MiB of words", Fault: "longtext@ACTION:rank=RANK", Detach: refusedRunning, Attach: refusedNamed, In: Both},
	{ID: "answers/refused-escapes", What: "says no, with terminal escapes and control bytes", Fault: "escapes@ACTION:rank=RANK", Detach: refusedRunning, Attach: refusedNamed, In: Both},
	{ID: "answers/success-running", What: "does it, and says that it is RUNNING", Fault: "wrongstate=RUNNING@CHECKPOINT:rank=RANK", Detach: &Outcome{Error: WrongState, Then: Running}, In: Both},
	{ID: "answers/success-running-true", What: "says that it has done it, but is RUNNING, which is true", Fault: "wrongstate=RUNNING@CHECKPOINT:rank=RANK,act=false", Detach: &Outcome{Error: WrongState, Then: Running}, In: Both},
	{ID: "answers/success-locked", What: "does it, and says that it is LOCKED", Fault: "wrongstate=LOCKED@ACTION:rank=RANK", Detach: &Outcome{Error: WrongState, Then: Running}, Attach: &Outcome{Error: WrongState, Then: Running}, In: Both},
	{ID: "answers/success-faulted", What: "says that it has done it, and is FAULTED", Fault: "wrongstate=FAULTED@ACTION:rank=RANK", Detach: &Outcome{Error: WrongState, Then: Named}, Attach: &Outcome{Error: WrongState, Then: Running}, In: Both},
	{ID: "answers/success-unknown", What: "does it, and says a state that nobody knows", Fault: "wrongstate=77@ACTION:rank=RANK", Detach: &Outcome{Error: WrongState, Then: Running}, Attach: &Outcome{Error: WrongState, Then: Running}, In: Both},
	{ID: "answers/no-fields", What: "does it, and says so, and nothing else", Fault: "nofields@ACTION:rank=RANK", Detach: fine, Attach: fine, In: Both},
	{ID: "answers/no-success", What: "does it, and says all but whether it did", Fault: "nosuccess@ACTION:rank=RANK", Detach: garbledRunning, Attach: garbledRunning, In: Both},
	{ID: "answers/empty", What: "does it, and answers with a frame of no bytes", Fault: "empty@ACTION:rank=RANK", Detach: garbledRunning, Attach: garbledRunning, In: Both},
	{ID: "answers/garbage", What: "does it, and answers with a frame that holds no message", Fault: "garbage@ACTION:rank=RANK", Detach: garbledRunning, Attach: garbledRunning, In: Both},
	{ID: "answers/garbage-attached", What: "does nothing, and answers with a frame that holds no message", Fault: "garbage@CHECKPOINT:rank=RANK,act=false", Detach: garbledRunning, In: Both},
	{ID: "answers/utf8", What: "does it, with words that are no UTF-8", Fault: "utf8@ACTION:rank=RANK", Detach: garbledRunning, Attach: garbledRunning, In: Both},
	{ID: "answers/unknown-fields", What: "does it, with fields that nobody knows", Fault: "unknownfields@ACTION:rank=RANK", Detach: fine, Attach: fine, In: Both},
	{ID: "answers/too-long-by-one", What: "does it, and begins an answer of one byte too many", Fault: "oversize@ACTION:rank=RANK", Detach: tooLarge, Attach: tooLarge, In: Both},
	{ID: "answers/4-gib", What: "does it, and begins an answer of 4 GiB less one byte", Fault: "huge@ACTION:rank=RANK", Detach: tooLarge, Attach: tooLarge, In: Both},
	{ID: "answers/byte-by-byte", What: "does it, and writes the answer one byte at a time", Fault: "dribble@ACTION:rank=RANK", Detach: fine, Attach: fine, In: Both},
	{ID: "answers/half", What: "does it, writes half of the answer, and hangs", Fault: "half@ACTION:rank=RANK", Detach: silentNamed, Attach: silentNamed, In: Both},
	{ID: "answers/twice", What: "does it, and answers twice", Fault: "twice@ACTION:rank=RANK", Detach: fine, Attach: fine, In: Both},
	{ID: "answers/before-the-request", What: "has answered before the request comes", Fault: "early@ACTION:rank=RANK", Detach: fine, Attach: fine, In: Both},
	{ID: "answers/older-request", What: "does it, and answers an older request first", Fault: "stale@ACTION:rank=RANK", Detach: &Outcome{Error: WrongState, Then: Running}, Attach: fine, In: Both},
	{ID: "answers/after-the-deadline", What: "does it, and answers after twice the limit", Fault: "late=2L@ACTION:rank=RANK", Detach: silentRunning, Attach: silentRunning, In: Both},
	{ID: "answers/other-topology", What: "says that it has other hardware than before", Fault: "topology=v9@RESTORE:rank=RANK", Attach: &Outcome{Error: Topology, Then: Running}, In: Both},
	{ID: "answers/one-mesh-refused", What: "says no, in a mesh whose members wait for each other", Fault: "refuse@ACTION:rank=RANK", Detach: refusedRunning, Attach: &Outcome{Error: Refused, Then: Named, Others: Named}, OneMesh: true, In: Both},
}

// silence are rows of runtimes that do not answer.
var silence = []Row{
	{ID: "silence/never-answers", What: "never answers, and does nothing", Fault: "stall@ACTION:rank=RANK", Detach: silentNamed, Attach: silentNamed, In: Both},
	{ID: "silence/acts-and-never-answers", What: "does it, and never answers", Fault: "stall@ACTION:rank=RANK,act=true", Detach: silentNamed, Attach: silentNamed, In: Both},
	{ID: "silence/stops-reading", What: "reads no more, and its request pipe is full", Fault: "stopreading@ACTION:rank=RANK", Detach: silentRunning, Attach: silentNamed, In: Both},
	{ID: "silence/0.99-of-the-limit", What: "answers just before its limit", Fault: "late=0.99L@ACTION:rank=RANK", Detach: fine, Attach: fine, In: InProcess},
	{ID: "silence/1.01-of-the-limit", What: "answers just after its limit", Fault: "late=1.01L@ACTION:rank=RANK", Detach: fine, Attach: fine, In: InProcess},
	{ID: "silence/closes-requests", What: "has closed its end of the request pipe", Fault: "closeread@ACTION:rank=RANK", Detach: &Outcome{Error: Closed, Then: Running}, Attach: &Outcome{Error: Closed, Then: Named}, In: Both},
	{ID: "silence/closes-answers", What: "closes its end of the answer pipe", Fault: "closewrite@ACTION:rank=RANK", Detach: &Outcome{Error: Closed, Then: Named}, Attach: &Outcome{Error: Closed, Then: Named}, In: Both},
	{ID: "silence/thread-exits", What: "its control thread ends", Fault: "exitthread@ACTION:rank=RANK", Detach: exitedNamed, Attach: exitedNamed, Real: true, In: Both},
	{ID: "silence/thread-acts-and-exits", What: "does it, and its control thread ends", Fault: "exitthread@ACTION:rank=RANK,at=acted", Detach: exitedNamed, Attach: exitedNamed, Real: true, In: Both},
	{ID: "silence/thread-exits-answering", What: "its control thread ends in the middle of the answer", Fault: "exitthread@ACTION:rank=RANK,at=half", Detach: exitedNamed, Attach: exitedNamed, Real: true, In: Both},
	{ID: "silence/thread-answers-and-exits", What: "its control thread answers, and ends", Fault: "exitthread@ACTION:rank=RANK,at=after", Detach: &Outcome{Error: Exited, Then: Named, Later: true}, Attach: fine, Real: true, In: Both},
	{ID: "silence/aborts", What: "its process ends", Fault: "abort@ACTION:rank=RANK", Detach: exitedGone, Attach: exitedGone, Real: true, In: Both},
	{ID: "silence/acts-and-aborts", What: "does it, and its process ends", Fault: "abort@ACTION:rank=RANK,at=acted", Detach: exitedGone, Attach: exitedGone, Real: true, In: Both},
	{ID: "silence/aborts-answering", What: "its process ends in the middle of the answer", Fault: "abort@ACTION:rank=RANK,at=half", Detach: exitedGone, Attach: exitedGone, Real: true, In: Both},
	{ID: "silence/answers-and-aborts", What: "its process answers, and ends", Fault: "abort@ACTION:rank=RANK,at=after", Detach: &Outcome{Error: Exited, Then: Gone, Later: true}, Attach: &Outcome{Then: Gone}, Real: true, In: Both},
}
