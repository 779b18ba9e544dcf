//! Groups where no area is to be created for a while: there was no room, or a writer wants it.

use std::time::Duration;

use moafs_runtime::Time;
use moafs_vfs::volatile::Group;

/// A group without room is asked again after this: files are deleted, and asking costs a look at a bitmap.
pub const NO_ROOM: Duration = Duration::from_secs(1);

/// A group that a writer needs is left alone for this: what is given up must not be taken at once again.
pub const PRESSED: Duration = Duration::from_secs(60);

/// Until when each group is avoided.
#[derive(Debug)]
pub struct Avoid {
    until: Vec<Time>,
}

impl Avoid {
    /// None of `groups` groups.
    pub fn new(groups: u32) -> Avoid {
        Avoid { until: vec![Time(0); groups as usize] }
    }

    /// Avoids a group from `now` on for at least `span`.
    pub fn add(&mut self, group: Group, now: Time, span: Duration) {
        if let Some(until) = self.until.get_mut(group.0 as usize) {
            *until = (*until).max(now + span);
        }
    }

    /// True if no area should be created there now.
    pub fn contains(&self, group: Group, now: Time) -> bool {
        self.until.get(group.0 as usize).is_none_or(|until| now < *until)
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
