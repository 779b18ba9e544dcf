//! Scimark2's SOR: Jacobi successive over-relaxation on an N×N matrix of doubles, in place.
//!
//! The matrix is N rows of their own; an allocator that gives large pieces whole pages (FreeBSD
//! 6's) puts each row on pages of its own. It is filled row by row. Then each iteration goes over
//! the inner rows; element (i, j) is made from (i-1, j), (i+1, j), (i, j-1), (i, j+1) and itself.

use super::{DOUBLE, PAGE, Touch};
use crate::error::Result;
use crate::memory::Access;

/// Time to fill an element with a random number, in nanoseconds.
const FILL_NS: u64 = 12;
/// Time for an element of a sweep, in nanoseconds: six operations at 450 Mflop/s.
const ELEMENT_NS: u64 = 13;

/// A run of SOR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sor {
    /// Number of rows, and of elements in each.
    pub n: u64,
    /// Number of sweeps over the matrix.
    pub iterations: u64,
}

/// The pages within a row that elements of one step touch: the same of the row above and below, of
/// its own the left and the right neighbour, and the element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    left: u64,
    at: u64,
    right: u64,
    elements: u64,
}

impl Sor {
    /// Returns the pages it needs.
    pub fn pages(&self) -> u32 {
        (self.n * self.row_pages()) as u32
    }

    fn row_pages(&self) -> u64 {
        (self.n * DOUBLE).div_ceil(PAGE)
    }

    /// Returns the steps of one inner row: a step begins at each element where one of the pages
    /// changes.
    fn steps(&self) -> Vec<Step> {
        let per_page = PAGE / DOUBLE;
        let end = self.n.saturating_sub(1);
        let mut steps = Vec::new();
        let mut j = 1;
        while j < end {
            let page = j / per_page;
            let until = match j % per_page {
                0 => j + 1,
                at if at == per_page - 1 => j + 1,
                _ => (page + 1) * per_page - 1,
            };
            let until = until.min(end);
            steps.push(Step { left: (j - 1) / per_page, at: page, right: until / per_page, elements: until - j });
            j = until;
        }
        steps
    }

    /// Runs the program.
    ///
    /// # Errors
    /// Fails if the swap fails.
    pub fn run(&self, process: &impl Touch) -> Result<()> {
        let row_pages = self.row_pages();
        for page in 0..self.n * row_pages {
            process.touch(page, Access::Write)?;
            process.compute(FILL_NS * PAGE / DOUBLE);
        }
        let steps = self.steps();
        for _ in 0..self.iterations {
            for row in 1..self.n.saturating_sub(1) {
                let (above, own, below) = ((row - 1) * row_pages, row * row_pages, (row + 1) * row_pages);
                for step in &steps {
                    process.touch(above + step.at, Access::Read)?;
                    process.touch(below + step.at, Access::Read)?;
                    process.touch(own + step.left, Access::Read)?;
                    process.touch(own + step.right, Access::Read)?;
                    process.touch(own + step.at, Access::Write)?;
                    process.compute(step.elements * ELEMENT_NS);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Recorder;
    use super::*;

    #[test]
    fn steps_are_those_of_the_loop() {
        for n in [3, 4, 511, 512, 513, 514, 1024, 1025, 1600] {
            // The loop itself, element by element; equal neighbours are one.
            let mut naive: Vec<Step> = Vec::new();
            for j in 1..n - 1 {
                let (left, at, right) = ((j - 1) / 512, j / 512, (j + 1) / 512);
                match naive.last_mut().filter(|last| (last.left, last.at, last.right) == (left, at, right)) {
                    Some(last) => last.elements += 1,
                    None => naive.push(Step { left, at, right, elements: 1 }),
                }
            }
            assert_eq!(Sor { n, iterations: 1 }.steps(), naive, "{n}");
        }
    }

    #[test]
    fn touches_are_those_of_the_loop_in_its_order() {
        let sor = Sor { n: 1030, iterations: 1 };
        let recorder = Recorder::default();
        sor.run(&recorder).unwrap();
        let fills = 1030 * 3;
        let touched = recorder.touched.borrow();
        assert!(touched[..fills].iter().enumerate().all(|(at, touch)| *touch == (at as u64, Access::Write)));
        // The first rows of the loop itself; the pages of an element are recorded if its neighbour
        // touched others.
        let page = |i: u64, j: u64| i * 3 + j * 8 / 4096;
        let (mut naive, mut last) = (Vec::new(), Vec::new());
        for (i, j) in (1..4).flat_map(|i| (1..1029).map(move |j| (i, j))) {
            let read =
                [page(i - 1, j), page(i + 1, j), page(i, j - 1), page(i, j + 1)].map(|page| (page, Access::Read));
            let element: Vec<_> = read.into_iter().chain([(page(i, j), Access::Write)]).collect();
            if element != last {
                naive.extend(element.clone());
                last = element;
            }
        }
        assert_eq!(touched[fills..fills + naive.len()], naive);
    }

    #[test]
    fn sizes_are_the_papers() {
        assert_eq!(Sor { n: 5600, iterations: 1 }.pages(), 5600 * 11);
        assert_eq!(Sor { n: 7000, iterations: 1 }.pages(), 7000 * 14);
    }
}
