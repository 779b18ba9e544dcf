//! Closed forms: the least that a log-structured volume must copy, if nothing is known of the future but how often data
//! are written.
//!
//! *Uniform writes.* Files die at random. If victims have `v` of `b` files left, the segments between a full one and a
//! victim are as many at `i` files as it takes one of `i` to die: in proportion to `1/i`. So the share of valid data is
//! `(b - v) / (b (H(b) - H(v)))` with the harmonic numbers `H`, which is `(1 - u) / ln(1/u)` for large segments; and
//! `b` files are written for each `b - v` of users. Cleaning the emptiest segment (greedy) reaches it, and none that
//! does not know the future does better.
//!
//! *Hot and cold.* Each kind has segments of its own, as if it were alone on a volume; the spare space is split so that
//! the sum of both copies is the least.
//!
//! References: Menon, Stodolsky and others for the uniform case with large segments; Desnoyers: Analytic Models of SSD
//! Write Performance (2014) for greedy cleaning of segments of few pages and for hot and cold data.

/// Steps of bisection and of the search for the least: more digits than anyone reads.
const STEPS: u32 = 60;

/// Data that are written alike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kind {
    /// Share of all data.
    pub data: f64,
    /// Share of all writes.
    pub writes: f64,
}

/// Returns bytes written for each byte of users, copies included, if all data are equally often written: `share` of the
/// space is valid, and a segment holds `files` files that die one by one.
pub fn uniform(share: f64, files: u32) -> f64 {
    let full = f64::from(files);
    let valid_share = |left: f64| (full - left) / (full * (harmonic(full) - harmonic(left)));
    let (mut low, mut high) = (0.0, full);
    for _ in 0..STEPS {
        let middle = (low + high) / 2.0;
        if valid_share(middle) < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    full / (full - low)
}

/// Returns the same for two kinds of data, each in segments of its own, with the best split of the space.
pub fn apart(share: f64, kinds: [Kind; 2], files: u32) -> f64 {
    let [one, other] = kinds;
    let spare = 1.0 - share;
    let written = |part: f64| {
        let of = |kind: Kind, spare: f64| kind.writes * uniform(kind.data * share / (kind.data * share + spare), files);
        of(one, spare * part) + of(other, spare * (1.0 - part))
    };
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..STEPS {
        let third = (high - low) / 3.0;
        if written(low + third) < written(high - third) {
            high -= third;
        } else {
            low += third;
        }
    }
    written((low + high) / 2.0)
}

/// Returns the harmonic number, linear between whole numbers: some of the victims have one file more than the others.
fn harmonic(files: f64) -> f64 {
    let whole = files.floor();
    let sum: f64 = (1..=whole as u32).map(|file| 1.0 / f64::from(file)).sum();
    sum + (files - whole) / (whole + 1.0)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;

    use super::*;

    const FILES: u32 = 64;
    const HOT: Kind = Kind { data: 0.1, writes: 0.9 };
    const COLD: Kind = Kind { data: 0.9, writes: 0.1 };

    /// A volume that cleans the emptiest segment whenever a single free one is left.
    struct Simulator {
        /// The files in each segment; those that have moved on are no longer theirs.
        segments: Vec<Vec<u32>>,
        valid: Vec<u32>,
        /// The segment of each file.
        places: Vec<u32>,
        free: VecDeque<u32>,
        open: u32,
        written: u64,
    }

    impl Simulator {
        fn new(segments: u32, files: u32) -> Simulator {
            let mut volume = Simulator {
                segments: vec![Vec::new(); segments as usize],
                valid: vec![0; segments as usize],
                places: vec![u32::MAX; files as usize],
                free: (1..segments).collect(),
                open: 0,
                written: 0,
            };
            (0..files).for_each(|file| volume.put(file));
            volume
        }

        fn put(&mut self, file: u32) {
            if self.segments[self.open as usize].len() == FILES as usize {
                self.open = self.free.pop_front().expect("one is always free");
            }
            let old = std::mem::replace(&mut self.places[file as usize], self.open);
            if old != u32::MAX {
                self.valid[old as usize] -= 1;
            }
            self.valid[self.open as usize] += 1;
            self.segments[self.open as usize].push(file);
            self.written += 1;
        }

        fn write(&mut self, file: u32) {
            self.put(file);
            while self.free.len() < 2 {
                let full = |at: &u32| *at != self.open && self.segments[*at as usize].len() == FILES as usize;
                let all = 0..self.segments.len() as u32;
                let victim = all.filter(full).min_by_key(|at| self.valid[*at as usize]).expect("there are some");
                for file in std::mem::take(&mut self.segments[victim as usize]) {
                    if self.places[file as usize] == victim {
                        self.put(file);
                    }
                }
                self.free.push_back(victim);
            }
        }
    }

    /// Returns files written for each file of users, at this share of the space that can hold data.
    fn simulated(share: f64) -> f64 {
        let segments = 1000;
        // One is open, and one is free.
        let files = (f64::from((segments - 2) * FILES) * share) as u32;
        let mut volume = Simulator::new(segments, files);
        let mut random = Pcg64Mcg::seed_from_u64(3);
        let writes = 3 * files;
        (0..writes).for_each(|_| volume.write(random.random_range(0..files)));
        volume.written = 0;
        (0..writes).for_each(|_| volume.write(random.random_range(0..files)));
        volume.written as f64 / f64::from(writes)
    }

    fn assert_close(found: f64, expected: f64, what: &str) {
        assert!((found / expected - 1.0).abs() < 0.02, "{what}: {found} and {expected}");
    }

    #[test]
    fn the_uniform_form_is_that_of_a_simulated_volume() {
        for share in [0.5, 0.7, 0.8, 0.9] {
            assert_close(simulated(share), uniform(share, FILES), &format!("{share}"));
        }
    }

    #[test]
    fn segments_of_very_many_files_follow_the_known_form() {
        for u in [0.3_f64, 0.6, 0.8] {
            assert_close(uniform((1.0 - u) / -u.ln(), 100_000), 1.0 / (1.0 - u), &format!("{u}"));
        }
    }

    #[test]
    fn hot_and_cold_apart_are_two_volumes_with_the_best_split() {
        let share = 0.8;
        let best = apart(share, [HOT, COLD], FILES);
        let split = |part: f64| {
            let shares = [(HOT, part), (COLD, 1.0 - part)].map(|(kind, part)| {
                let data = kind.data * share;
                (kind.writes, data / (data + part * (1.0 - share)))
            });
            shares.map(|(writes, share)| writes * simulated(share)).iter().sum::<f64>()
        };
        let found = [0.3, 0.5, 0.7].map(split);
        let least = found.into_iter().fold(f64::INFINITY, f64::min);
        assert!(least > 0.98 * best, "{found:?} and {best}");
        assert_close(least, best, "the least of a few splits");
        assert!(best < uniform(share, FILES));
    }
}
