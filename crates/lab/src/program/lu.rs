//! nbench's LU: a system of N linear equations is made and decomposed by Crout's method with implicit partial pivoting.
//!
//! The matrix is one array of N×N doubles, row after row. Making it: a diagonal matrix, then 8·N times a row drawn at random is
//! added to another. Decomposing it: the largest element of each row; then column by column: for each row its elements left of
//! the column (or of the diagonal) are multiplied with those above in the column; the pivot's row changes places with the
//! diagonal's; the rest of the column is divided.
//!
//! How far it gets: at N = 6300, column j costs N·j multiplications over pages that grow to the whole matrix, 6300 times. On a
//! machine that pages, two of these never ended in the time of the file program. So `columns` bounds what is decomposed.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::{DOUBLE, PAGE, touch};
use crate::error::Result;
use crate::memory::{Access, Process};

/// An element of the diagonal matrix, or of a row that is added or searched, in nanoseconds.
const ELEMENT_NS: u64 = 4;
/// A multiplication in a column: each element above lies on another page, so the address translation misses.
const MULTIPLY_NS: u64 = 10;
/// Additions of rows for each row of the matrix.
const SCRAMBLES_PER_ROW: u64 = 8;

/// A run of LU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lu {
    /// Rows and columns.
    pub n: u64,
    /// Columns that are decomposed, at most N.
    pub columns: u64,
    /// What rows and pivots are drawn from.
    pub seed: u64,
}

impl Lu {
    /// Pages it needs.
    pub fn pages(&self) -> u32 {
        (self.n * self.n * DOUBLE).div_ceil(PAGE) as u32
    }

    fn page(&self, row: u64, column: u64) -> u64 {
        (row * self.n + column) * DOUBLE / PAGE
    }

    /// Pages of the first `columns` elements of a row.
    fn row(&self, row: u64, columns: u64) -> std::ops::Range<u64> {
        match columns {
            0 => 0..0,
            _ => self.page(row, 0)..self.page(row, columns - 1) + 1,
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// If the swap fails.
    pub fn run(&self, process: &Process) -> Result<()> {
        let mut rng = Pcg64Mcg::seed_from_u64(self.seed);
        self.make(process, &mut rng)?;
        for row in 0..self.n {
            self.touch_row(process, row, self.n, Access::Read)?;
        }
        for column in 0..self.columns.min(self.n) {
            self.decompose(process, column, &mut rng)?;
        }
        process.settle();
        Ok(())
    }

    fn make(&self, process: &Process, rng: &mut Pcg64Mcg) -> Result<()> {
        for row in 0..self.n {
            self.touch_row(process, row, self.n, Access::Write)?;
        }
        for _ in 0..SCRAMBLES_PER_ROW * self.n {
            let (to, from) = (rng.random_range(0..self.n), rng.random_range(0..self.n));
            if to == from {
                continue;
            }
            for (to, from) in self.row(to, self.n).zip(self.row(from, self.n)) {
                touch(process, to, Access::Read)?;
                touch(process, from, Access::Read)?;
                touch(process, to, Access::Write)?;
                process.compute(ELEMENT_NS * PAGE / DOUBLE);
            }
        }
        Ok(())
    }

    fn touch_row(&self, process: &Process, row: u64, columns: u64, access: Access) -> Result<()> {
        for page in self.row(row, columns) {
            touch(process, page, access)?;
            process.compute(ELEMENT_NS * PAGE / DOUBLE);
        }
        Ok(())
    }

    fn decompose(&self, process: &Process, column: u64, rng: &mut Pcg64Mcg) -> Result<()> {
        // Until somebody looks at pages, those of the column above are as they were touched for the row before.
        let mut touched = (0, None);
        for row in 0..self.n {
            touch(process, self.page(row, column), Access::Read)?;
            let factors = row.min(column);
            self.touch_column(process, column, factors, &mut touched)?;
            for page in self.row(row, factors) {
                touch(process, page, Access::Read)?;
            }
            process.compute(factors * MULTIPLY_NS);
            touch(process, self.page(row, column), Access::Write)?;
        }
        let pivot = rng.random_range(column..self.n);
        if pivot != column {
            for (one, other) in self.row(pivot, self.n).zip(self.row(column, self.n)) {
                touch(process, one, Access::Write)?;
                touch(process, other, Access::Write)?;
                process.compute(ELEMENT_NS * PAGE / DOUBLE);
            }
        }
        for row in column + 1..self.n {
            touch(process, self.page(row, column), Access::Write)?;
            process.compute(ELEMENT_NS);
        }
        Ok(())
    }

    /// The elements of the column above: all, if pages were looked at since; those that are new for this row, if not.
    fn touch_column(
        &self,
        process: &Process,
        column: u64,
        rows: u64,
        touched: &mut (u64, Option<u64>),
    ) -> Result<()> {
        let from = if touched.1 == Some(process.looks()) { touched.0 } else { 0 };
        let looks = process.looks();
        for row in from..rows {
            touch(process, self.page(row, column), Access::Read)?;
        }
        *touched = (rows, Some(looks));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_pages_of_their_elements() {
        let lu = Lu { n: 700, columns: 700, seed: 1 };
        for (row, columns) in [(0, 1), (0, 512), (0, 513), (1, 700), (699, 700), (3, 0)] {
            let naive: std::collections::BTreeSet<u64> =
                (0..columns).map(|column| (row * 700 + column) * 8 / 4096).collect();
            assert!(lu.row(row, columns).eq(naive), "{row}, {columns}");
        }
        assert_eq!(Lu { n: 6300, columns: 0, seed: 1 }.pages(), 77_520);
    }
}
