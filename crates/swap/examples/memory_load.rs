//! Programs that need more memory than they get: for tests of a swap that the kernel uses, inside a memory cgroup.
//!
//! ```text
//! memory_load patterns --mib 180 --swapped-pages 1000000     every page written and checked, in and out of order
//! memory_load sor --mib 96 --sweeps 10                       successive over-relaxation, as Scimark2 defines it
//! ```
//!
//! Both end with exit code 1 if a single byte is not what it should be: `patterns` knows what each page must hold,
//! `sor` prints a sum that is the same wherever it runs.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};

/// Programs that need more memory than they get
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    load: Load,
}

#[derive(Subcommand)]
enum Load {
    Patterns(Patterns),
    Sor(Sor),
}

const PAGE_BYTES: usize = 4096;
const PAGE_WORDS: usize = PAGE_BYTES / size_of::<u64>();

fn main() -> ExitCode {
    let done = match Arguments::parse().load {
        Load::Patterns(patterns) => patterns.run(),
        Load::Sor(sor) => sor.run(),
    };
    match done {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("memory_load: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Writes every page of a large piece of memory and checks it, again and again
#[derive(Args)]
struct Patterns {
    /// Memory in MiB
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    mib: u64,
    /// Rounds of writing and checking at least
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// Go on until the machine has written and read back so many pages of swap meanwhile
    #[arg(long, default_value_t = 0)]
    swapped_pages: u64,
    /// Go on for so many seconds
    #[arg(long, default_value_t = 0)]
    seconds: u64,
}

impl Patterns {
    fn run(&self) -> Result<String, String> {
        let pages = usize::try_from((self.mib << 20) / PAGE_BYTES as u64).map_err(|error| error.to_string())?;
        let mut memory = vec![0_u64; pages * PAGE_WORDS];
        let (start, before) = (Instant::now(), Swapped::now()?);
        let mut round = 0;
        loop {
            let order = Order::of_round(round, pages);
            order.clone().for_each(|page| fill(&mut memory, page, round));
            for page in order {
                check(&memory, page, round)?;
            }
            round += 1;
            let since = Swapped::now()?.since(before);
            let enough = round >= self.rounds
                && since.least() >= self.swapped_pages
                && start.elapsed() >= Duration::from_secs(self.seconds);
            if enough {
                let (Swapped { pages_in, pages_out }, secs) = (since, start.elapsed().as_secs_f64());
                return Ok(format!(
                    "patterns: {} MiB right in {round} rounds, {secs:.1} s; the machine swapped {pages_out} pages out and {pages_in} in",
                    self.mib
                ));
            }
        }
    }
}

/// The order in which pages are touched: ascending in even rounds; in odd ones by a stride that reaches all of them.
#[derive(Clone)]
struct Order {
    next: usize,
    stride: usize,
    pages: usize,
    left: usize,
}

impl Order {
    fn of_round(round: u64, pages: usize) -> Order {
        // A stride without a factor in common with the number of pages reaches each page once.
        let coprime = |stride: &usize| gcd(*stride, pages) == 1;
        let far = (pages * 5 / 13 + 1..).find(coprime).unwrap_or(1);
        Order { next: 0, stride: if round.is_multiple_of(2) { 1 } else { far }, pages, left: pages }
    }
}

impl Iterator for Order {
    type Item = usize;
    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let page = self.next;
        self.next = (page + self.stride) % self.pages;
        Some(page)
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns a word of a page in a round. No two are alike, so that the kernel cannot keep the page as "all the same".
fn word(page: usize, round: u64, index: usize) -> u64 {
    let seed = (page as u64) << 32 ^ round << 16 ^ index as u64;
    (seed ^ seed >> 29).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn fill(memory: &mut [u64], page: usize, round: u64) {
    let words = &mut memory[page * PAGE_WORDS..(page + 1) * PAGE_WORDS];
    words.iter_mut().enumerate().for_each(|(index, here)| *here = word(page, round, index));
}

fn check(memory: &[u64], page: usize, round: u64) -> Result<(), String> {
    let words = &memory[page * PAGE_WORDS..(page + 1) * PAGE_WORDS];
    match words.iter().enumerate().find(|(index, here)| **here != word(page, round, *index)) {
        None => Ok(()),
        Some((index, here)) => {
            let expected = word(page, round, index);
            Err(format!("round {round}, page {page}, word {index}: {here:#018x} instead of {expected:#018x}"))
        }
    }
}

/// Pages swapped since the machine started, as /proc/vmstat counts them.
#[derive(Clone, Copy)]
struct Swapped {
    pages_in: u64,
    pages_out: u64,
}

impl Swapped {
    fn now() -> Result<Swapped, String> {
        let text = std::fs::read_to_string("/proc/vmstat").map_err(|error| format!("/proc/vmstat: {error}"))?;
        let count = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|count| count.parse().ok()).unwrap_or(0)
        };
        Ok(Swapped { pages_in: count("pswpin"), pages_out: count("pswpout") })
    }

    fn since(self, before: Swapped) -> Swapped {
        Swapped { pages_in: self.pages_in - before.pages_in, pages_out: self.pages_out - before.pages_out }
    }

    fn least(self) -> u64 {
        self.pages_in.min(self.pages_out)
    }
}

/// Jacobi successive over-relaxation on a square grid, as Scimark2 does it
#[derive(Args)]
struct Sor {
    /// Memory of the grid in MiB: the side is the square root of as many numbers of 8 bytes
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    mib: u64,
    /// Sweeps over the grid
    #[arg(long, default_value_t = 10)]
    sweeps: u32,
}

/// The relaxation factor of Scimark2.
const OMEGA: f64 = 1.25;

impl Sor {
    /// Runs the sweeps over a grid that is a vector of rows, as in Scimark2. Each inner point becomes a mix of itself
    /// and the mean of its four neighbours.
    fn run(&self) -> Result<String, String> {
        let side = ((self.mib << 20) / size_of::<f64>() as u64).isqrt() as usize;
        let mut grid = random_grid(side);
        let start = Instant::now();
        for _ in 0..self.sweeps {
            sweep(&mut grid);
        }
        let sum: f64 = grid.iter().flatten().sum();
        Ok(format!(
            "sor: {side} x {side}, {} sweeps, sum {sum:.9e}, {:.1} s",
            self.sweeps,
            start.elapsed().as_secs_f64()
        ))
    }
}

fn sweep(grid: &mut [Vec<f64>]) {
    for i in 1..grid.len().saturating_sub(1) {
        let [above, row, below] = &mut grid[i - 1..=i + 1] else { unreachable!("three rows") };
        for j in 1..row.len() - 1 {
            let around = above[j] + below[j] + row[j - 1] + row[j + 1];
            row[j] = OMEGA / 4.0 * around + (1.0 - OMEGA) * row[j];
        }
    }
}

/// Makes a grid of numbers from 0 to 1 that are the same on every machine.
fn random_grid(side: usize) -> Vec<Vec<f64>> {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut number = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    (0..side).map(|_| (0..side).map(|_| number()).collect()).collect()
}
