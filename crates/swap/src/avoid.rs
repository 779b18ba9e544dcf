//! Groups where no area is to be created for a while: there was no space, or a writer needs it.

use std::time::Duration;

use moafs_runtime::Time;
use moafs_vfs::swap_space::Group;

/// The time after which a group without space is tried again: files are deleted, and a try costs a look at a bitmap.
pub const NO_ROOM: Duration = Duration::from_secs(1);

/// The time for which a contended group is left alone: space that was given up must not be taken again at once.
pub const PRESSED: Duration = Duration::from_secs(60);

/// For each group the time until which it is avoided.
#[derive(Debug)]
pub struct Avoid {
    until: Vec<Time>,
}

impl Avoid {
    /// Makes a list in which none of `groups` groups is avoided.
    pub fn new(groups: u32) -> Avoid {
        Avoid { until: vec![Time(0); groups as usize] }
    }

    /// Avoids a group from `now` on for at least `span`.
    pub fn add(&mut self, group: Group, now: Time, span: Duration) {
        if let Some(until) = self.until.get_mut(group.index()) {
            *until = (*until).max(now + span);
        }
    }

    /// Returns true if no area should be created there now.
    pub fn contains(&self, group: Group, now: Time) -> bool {
        self.until.get(group.index()).is_none_or(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_span_counts() {
        let mut avoid = Avoid::new(2);
        assert!(!avoid.contains(Group(1), Time(0)));
        assert!(avoid.contains(Group(2), Time(0)), "there is no such group");
        avoid.add(Group(1), Time(0), PRESSED);
        avoid.add(Group(1), Time(0), NO_ROOM);
        assert!(avoid.contains(Group(1), Time(0) + NO_ROOM));
        assert!(!avoid.contains(Group(1), Time(0) + PRESSED));
    }
}
