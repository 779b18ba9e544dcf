//! Queues of waiting commands: at the host ([`HostQueue`]), and at a drive that chooses the order itself
//! ([`DriveQueue`]).
//!
//! Both are pure: they decide when asked, from the commands that have arrived by then. A flush is a barrier in both:
//! commands before it are served before it, commands after it wait for it.

use std::collections::{BTreeMap, VecDeque};

use moafs_runtime::Time;

use super::drive::Drive;
use super::service::{Command, Service, Verb};
use super::spec::{DriveSpec, SpecError};

/// Nanoseconds after which a command that waits at the drive is served first.
const PATIENCE_NS: u64 = 1_000_000_000;

/// The number of oldest commands among which the one with the shortest positioning time is chosen: bounds the cost of a
/// choice.
const CHOICE_MAX: usize = 1024;

/// The order in which a host hands waiting commands to the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// First come, first served.
    Fcfs,
    /// BSD's disksort: ascending from the end of the last command, then from the lowest again.
    Clook,
    /// Shortest positioning time first, by a host that knows the drive.
    Sptf,
}

/// Commands that wait at the host. Ties are broken by arrival.
#[derive(Debug, Clone)]
pub struct HostQueue<Id> {
    policy: Policy,
    /// Commands between barriers, keyed by address and arrival.
    runs: VecDeque<Run<Id>>,
    arrivals: u64,
    /// The end of the last command.
    position: u64,
    waiting: usize,
}

/// Commands that may be reordered: all up to the next flush, and that flush.
#[derive(Debug, Clone)]
struct Run<Id> {
    commands: BTreeMap<(u64, u64), (Id, Command)>,
    flush: Option<(Id, Command)>,
}

impl<Id> HostQueue<Id> {
    /// Makes an empty queue.
    pub fn new(policy: Policy) -> HostQueue<Id> {
        HostQueue { policy, runs: VecDeque::new(), arrivals: 0, position: 0, waiting: 0 }
    }

    /// Returns the number of waiting commands.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// Returns true if no command waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Adds a command; `id` is returned with it.
    pub fn push(&mut self, id: Id, command: Command) {
        if self.runs.back().is_none_or(|run| run.flush.is_some()) {
            self.runs.push_back(Run { commands: BTreeMap::new(), flush: None });
        }
        let run = self.runs.back_mut().expect("there is one now");
        // Only C-LOOK keeps addresses in order; the others go by arrival.
        let at = if self.policy == Policy::Clook { command.at.0 } else { 0 };
        match command.verb {
            Verb::Flush => run.flush = Some((id, command)),
            _ => drop(run.commands.insert((at, self.arrivals), (id, command))),
        }
        self.arrivals += 1;
        self.waiting += 1;
    }

    /// Removes and returns the command that goes to `drive` at `now`.
    pub fn pop(&mut self, drive: &Drive, now: Time) -> Option<(Id, Command)> {
        let run = self.runs.front_mut()?;
        let next = match self.policy {
            Policy::Fcfs => run.commands.pop_first(),
            Policy::Clook => {
                let ahead = run.commands.range((self.position, 0)..).next();
                let key = ahead.or_else(|| run.commands.first_key_value()).map(|(&key, _)| key);
                key.and_then(|key| run.commands.remove_entry(&key))
            }
            Policy::Sptf => {
                let by_time = |((_, arrival), (_, command)): &(&(u64, u64), &(Id, Command))| {
                    (drive.positioning_ns(now, command), *arrival)
                };
                let key = run.commands.iter().take(CHOICE_MAX).min_by_key(by_time).map(|(&key, _)| key);
                key.and_then(|key| run.commands.remove_entry(&key))
            }
        };
        let taken = match next {
            Some((_, taken)) => {
                self.position = taken.1.end();
                Some(taken)
            }
            None => run.flush.take(),
        };
        if run.commands.is_empty() && run.flush.is_none() {
            self.runs.pop_front();
        }
        self.waiting -= usize::from(taken.is_some());
        taken
    }
}

/// A drive with the commands it has been given. Without NCQ it serves them in order, one by one; with NCQ a hard disk
/// picks the one that it reaches soonest, and a solid state disk works on several at once.
#[derive(Debug, Clone)]
pub struct DriveQueue<Id> {
    drive: Drive,
    depth: usize,
    waiting: VecDeque<Waiting<Id>>,
}

#[derive(Debug, Clone)]
struct Waiting<Id> {
    id: Id,
    arrived: Time,
    command: Command,
}

/// A command that was served.
#[derive(Debug, Clone, Copy)]
pub struct Finished<Id> {
    /// The caller's number of the command, as given.
    pub id: Id,
    /// The time it was given to the drive.
    pub arrived: Time,
    /// The command, as given.
    pub command: Command,
    /// The time it took, by component.
    pub service: Service,
}

impl<Id> DriveQueue<Id> {
    /// Makes a drive as specified, at time 0.
    ///
    /// # Errors
    /// As [`Drive::new`] returns them.
    pub fn new(spec: &DriveSpec) -> Result<DriveQueue<Id>, SpecError> {
        Ok(DriveQueue { drive: Drive::new(spec)?, depth: spec.ncq_depth() as usize, waiting: VecDeque::new() })
    }

    /// Returns the drive itself.
    pub fn drive(&self) -> &Drive {
        &self.drive
    }

    /// Returns true if the drive takes one more command.
    pub fn has_room(&self) -> bool {
        self.waiting.len() < self.depth
    }

    /// Returns the number of commands that were given and not begun.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns true if no command waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Gives the drive a command; `arrived` does not go back from call to call.
    pub fn push(&mut self, id: Id, arrived: Time, command: Command) {
        self.waiting.push_back(Waiting { id, arrived, command });
    }

    /// Returns the time at which the drive begins the next command ([`Drive::free_at`]); `None` if
    /// none waits.
    pub fn begins_at(&self) -> Option<Time> {
        self.waiting.front().map(|first| first.arrived.max(self.drive.free_at()))
    }

    /// Serves the next command. To be called once the clock has reached [`Self::begins_at`], so that every command that
    /// can be chosen has arrived.
    pub fn serve(&mut self) -> Option<Finished<Id>> {
        let now = self.begins_at()?;
        let index = self.choose(now);
        let Waiting { id, arrived, command } = self.waiting.remove(index)?;
        let service = self.drive.execute(now, command);
        Some(Finished { id, arrived, command, service })
    }

    fn choose(&self, now: Time) -> usize {
        let oldest_is_patient = self.waiting.front().is_some_and(|w| now.0 - w.arrived.0 < PATIENCE_NS);
        if self.depth <= 1 || !oldest_is_patient {
            return 0;
        }
        let arrived = |(_, w): &(usize, &Waiting<Id>)| w.arrived <= now && w.command.verb != Verb::Flush;
        let choice = self.waiting.iter().enumerate().take(self.depth).take_while(arrived);
        let positioning_ns = |w: &Waiting<Id>| match self.drive.answers_from_buffer(&w.command) {
            true => 0,
            false => self.drive.positioning_ns(now, &w.command),
        };
        // The first of equals is the one that came first.
        choice.min_by_key(|(_, w)| positioning_ns(w)).map_or(0, |(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(policy: Policy, commands: &[Command]) -> Vec<u64> {
        let drive = Drive::new(&DriveSpec::preset("c9m").unwrap()).unwrap();
        let mut queue = HostQueue::new(policy);
        let (first, rest) = commands.split_first().unwrap();
        queue.push((), *first);
        let mut order = vec![queue.pop(&drive, Time(0)).unwrap().1.at.0];
        rest.iter().for_each(|command| queue.push((), *command));
        while let Some(((), command)) = queue.pop(&drive, Time(0)) {
            order.push(command.at.0);
        }
        assert!(queue.is_empty());
        order
    }

    #[test]
    fn disksort_goes_up_and_starts_again_from_the_lowest() {
        let commands = [500, 900, 100, 700, 600, 200].map(|at| Command::read(at, 8));
        assert_eq!(order(Policy::Clook, &commands), [500, 600, 700, 900, 100, 200]);
        assert_eq!(order(Policy::Fcfs, &commands), [500, 900, 100, 700, 600, 200]);
    }

    #[test]
    fn nothing_passes_a_flush() {
        let mut commands: Vec<Command> = [900, 500, 100].map(|at| Command::read(at, 8)).into();
        commands.push(Command::flush());
        commands.extend([800, 300].map(|at| Command::write(at, 8)));
        for (policy, expected) in
            [(Policy::Clook, [900, 100, 500, 0, 800, 300]), (Policy::Fcfs, [900, 500, 100, 0, 800, 300])]
        {
            assert_eq!(order(policy, &commands), expected);
        }
    }

    #[test]
    fn the_shortest_positioning_time_goes_first() {
        // At time 0 the arm is outermost and sector 0 under the head: sector 10 passes before sector 5 of a far track.
        let commands = [0, 17_000_000, 20, 10].map(|at| Command::read(at, 1));
        assert_eq!(order(Policy::Sptf, &commands), [0, 10, 20, 17_000_000]);
    }

    #[test]
    fn a_drive_with_ncq_picks_and_one_without_does_not() {
        let serve = |depth: &str| -> Vec<u64> {
            let mut spec = DriveSpec::preset("st3160812as").unwrap();
            spec.set("cache", "off").unwrap();
            spec.set("ncq_depth", depth).unwrap();
            let mut queue = DriveQueue::new(&spec).unwrap();
            for at in [300_000_000, 100_000_000, 1000] {
                queue.push((), Time(0), Command::read(at, 8));
            }
            std::iter::from_fn(|| queue.serve()).map(|finished| finished.command.at.0).collect()
        };
        assert_eq!(serve("1"), [300_000_000, 100_000_000, 1000]);
        assert_eq!(serve("32"), [1000, 100_000_000, 300_000_000]);
    }

    #[test]
    fn a_command_that_waits_too_long_goes_first() {
        let mut spec = DriveSpec::preset("st3160812as").unwrap();
        spec.set("cache", "off").unwrap();
        spec.set("ncq_depth", "32").unwrap();
        let mut queue = DriveQueue::new(&spec).unwrap();
        queue.push("far", Time(0), Command::read(300_000_000, 8));
        // A stream of near commands would starve it.
        for i in 0_u64.. {
            queue.push("near", queue.drive().free_at(), Command::read(i % 2 * 5000, 8));
            let finished = queue.serve().unwrap();
            if finished.id == "far" {
                assert!(finished.service.started >= Time(PATIENCE_NS));
                assert!(finished.service.started < Time(PATIENCE_NS + 20_000_000));
                return;
            }
        }
    }
}
