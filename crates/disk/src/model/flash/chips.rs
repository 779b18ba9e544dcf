//! Dies and channels, and the times until which each is busy.
//!
//! Every operation is queued behind the operations its die already has; its duration is known at once, so no operation
//! waits and no event is kept. Read: the die senses the page, then the channel carries it. Program: the channel carries
//! the page, then the die programs it. Copies and erases occupy the die alone; without copy-back a copy also crosses
//! the channel, twice.
//!
//! A channel is not held for a die that is still busy: it is charged the time that it carries data, from when the
//! operation could have begun on an idle die.

use super::super::parameter::ms_to_ns;
use super::counters::FlashCounters;
use super::spec::FlashSpec;

/// Dies on channels; die `d` is on channel `d % channels`.
#[derive(Debug, Clone)]
pub(in crate::model) struct Chips {
    read_ns: u64,
    program_ns: u64,
    erase_ns: u64,
    copy_ns: u64,
    /// Time for which a copy occupies the channel.
    copy_carry_ns: u64,
    page_bytes: u64,
    rate: Rate,
    /// The time until which each channel is busy.
    channels_ns: Vec<u64>,
    dies: Vec<Die>,
    /// The number of the host's command being served.
    command: u64,
    pub(in crate::model) counters: FlashCounters,
}

#[derive(Debug, Clone, Default)]
struct Die {
    free_ns: u64,
    /// Time of copies and erases that no command has been charged with.
    gc_due_ns: u64,
    /// The command to which `wait_ns` and `gc_ns` belong.
    command: u64,
    wait_ns: u64,
    gc_ns: u64,
}

/// The end of an operation, and the time that its command has waited for that die.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(in crate::model) struct Op {
    pub(in crate::model) ends_ns: u64,
    /// Time waited for copies and erases.
    pub(in crate::model) gc_ns: u64,
    /// Time waited for earlier commands on the die.
    pub(in crate::model) wait_ns: u64,
}

/// Bytes per second; `None`: transfers take no time.
#[derive(Debug, Clone, Copy)]
pub(in crate::model) struct Rate(Option<u64>);

impl Rate {
    /// Makes a rate from 10^6 bytes per second.
    pub(in crate::model) fn mb_s(rate: f64) -> Rate {
        Rate(rate.is_finite().then_some((rate * 1e6) as u64))
    }

    /// Returns the time of carrying `bytes`.
    pub(in crate::model) fn ns(self, bytes: u64) -> u64 {
        let Some(rate) = self.0 else { return 0 };
        ((u128::from(bytes) * 1_000_000_000 + u128::from(rate / 2)) / u128::from(rate)) as u64
    }
}

impl Chips {
    /// Makes chips that are idle at time 0.
    pub(in crate::model) fn new(spec: &FlashSpec) -> Chips {
        let page_bytes = spec.page_bytes();
        let rate = Rate::mb_s(spec.channel_mb_s);
        let (read_ns, program_ns) = (ms_to_ns(spec.read_ms), ms_to_ns(spec.program_ms));
        let copy_carry_ns = if spec.copy_back { 0 } else { 2 * rate.ns(page_bytes) };
        Chips {
            read_ns,
            program_ns,
            erase_ns: ms_to_ns(spec.erase_ms),
            copy_ns: read_ns + program_ns + copy_carry_ns,
            copy_carry_ns,
            page_bytes,
            rate,
            channels_ns: vec![0; spec.channels as usize],
            dies: vec![Die::default(); spec.dies()],
            command: 0,
            counters: FlashCounters { page_bytes, ..FlashCounters::default() },
        }
    }

    /// Resets all times and counts: the operations so far were before time 0.
    pub(in crate::model) fn restart(&mut self) {
        self.channels_ns.fill(0);
        self.dies.fill(Die::default());
        self.command = 0;
        self.counters = FlashCounters { page_bytes: self.page_bytes, ..FlashCounters::default() };
    }

    /// Assigns the following operations to the host's next command.
    pub(in crate::model) fn begin_command(&mut self) {
        self.command += 1;
    }

    /// Reads part of a page.
    pub(in crate::model) fn read(&mut self, die: usize, ready_ns: u64, bytes: u64) -> Op {
        let begins_ns = self.enter(die, ready_ns);
        let carry_ns = self.rate.ns(bytes);
        let carried_ns = self.carry(die, ready_ns + self.read_ns, carry_ns).max(begins_ns + self.read_ns) + carry_ns;
        self.end(die, carried_ns)
    }

    /// Programs a page from `ready_ns` on or as soon as channel and die are free.
    pub(in crate::model) fn program(&mut self, die: usize, ready_ns: u64) -> Op {
        let begins_ns = self.enter(die, ready_ns);
        let carry_ns = self.rate.ns(self.page_bytes);
        let loaded_ns = self.carry(die, ready_ns, carry_ns).max(begins_ns) + carry_ns;
        self.counters.host_pages += 1;
        self.end(die, loaded_ns + self.program_ns)
    }

    /// Copies pages within a die.
    pub(in crate::model) fn copy(&mut self, die: usize, ready_ns: u64, pages: u64) {
        self.counters.gc_pages += pages;
        self.carry(die, ready_ns, pages * self.copy_carry_ns);
        self.occupy(die, ready_ns, pages * self.copy_ns);
    }

    /// Erases a block of a die.
    pub(in crate::model) fn erase(&mut self, die: usize, ready_ns: u64) {
        self.counters.erases += 1;
        self.occupy(die, ready_ns, self.erase_ns);
    }

    /// Charges the die's channel; returns the time at which it is free for this transfer.
    fn carry(&mut self, die: usize, ready_ns: u64, carry_ns: u64) -> u64 {
        let channels = self.channels_ns.len();
        let channel_ns = &mut self.channels_ns[die % channels];
        let begins_ns = ready_ns.max(*channel_ns);
        *channel_ns = begins_ns + carry_ns;
        begins_ns
    }

    fn occupy(&mut self, die: usize, ready_ns: u64, ns: u64) {
        let begins_ns = self.enter(die, ready_ns);
        self.dies[die].free_ns = begins_ns + ns;
        self.dies[die].gc_due_ns += ns;
    }

    /// Queues for a die; returns the time at which it can begin. The command waits for the work it
    /// finds the die busy with.
    fn enter(&mut self, die: usize, ready_ns: u64) -> u64 {
        let die = &mut self.dies[die];
        if die.command != self.command {
            let busy_ns = die.free_ns.saturating_sub(ready_ns);
            die.gc_due_ns = die.gc_due_ns.min(busy_ns);
            (die.command, die.wait_ns, die.gc_ns) = (self.command, busy_ns - die.gc_due_ns, 0);
        }
        die.free_ns.max(ready_ns)
    }

    fn end(&mut self, die: usize, ends_ns: u64) -> Op {
        let die = &mut self.dies[die];
        die.free_ns = ends_ns;
        die.gc_ns += std::mem::take(&mut die.gc_due_ns);
        Op { ends_ns, gc_ns: die.gc_ns, wait_ns: die.wait_ns }
    }
}
