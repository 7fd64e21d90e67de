//! `-batch FILE`.

use std::path::Path;

use super::{DONE, FAILED, Failure, Session, SessionEnvironment};
use crate::{
    client::{Error, OnRefusal, Pipeline},
    grammar::{self, CliOptions, XfrmCommand},
    request::{self, request},
    script::{Line, Lines, Next},
};

/// Carries out the lines of a file; the exit code of the first that failed.
pub(super) fn run(
    path: &Path,
    options: &CliOptions,
    world: &mut impl SessionEnvironment,
) -> Result<u8, Failure> {
    let source = match world.script(path) {
        Ok(source) => source,
        Err(error) => {
            let text = format!("Cannot open file \"{}\" for reading: {error}", path.display());
            return Err(Failure::NoConnection(text));
        }
    };
    let course = if options.force { OnRefusal::Continue } else { OnRefusal::Stop };
    let session = Session::open(options, world)?;
    let mut batch = Batch {
        pipeline: Pipeline::new(&session.connection, course),
        session,
        name: path.display().to_string(),
        code: DONE,
    };
    let mut lines = Lines::of(source);
    while batch.goes_on() {
        match lines.next()? {
            Next::Line(line) => batch.line(&line)?,
            Next::Pause => batch.settle()?,
            Next::End => break,
        }
    }
    batch.settle()?;
    Ok(batch.code)
}

struct Batch<'w, W> {
    session: Session<'w, W>,
    /// Tagged with lines' numbers.
    pipeline: Pipeline<u32>,
    name: String,
    code: u8,
}

impl<W: SessionEnvironment> Batch<'_, W> {
    fn goes_on(&self) -> bool {
        self.session.options.force || (self.code == DONE && !self.pipeline.has_refusals())
    }

    fn line(&mut self, line: &Line) -> Result<(), Failure> {
        match self.carry_out(line) {
            // These end the batch: nothing that follows would fare better.
            Err(failure @ (Failure::Talk(Error::Closed | Error::Io(_)) | Failure::Output(_))) => {
                Err(failure)
            }
            Err(failure) => {
                self.settle()?; // failures are told in the order of the lines
                if !self.goes_on() {
                    return Ok(()); // an earlier line ended it
                }
                self.complain(line.number, &failure)
            }
            Ok(()) => Ok(()),
        }
    }

    fn carry_out(&mut self, line: &Line) -> Result<(), Failure> {
        let family = self.session.options.style.family;
        let Some(command) =
            grammar::line(&line.text, family).map_err(|fault| in_file(fault, line))?
        else {
            return Ok(());
        };
        if !matches!(command, XfrmCommand::StateDeleteAll(_) | XfrmCommand::PolicyDeleteAll(_)) {
            let (request, wanted) = request(&command)?;
            if wanted == request::ExpectedAnswer::Acknowledgement {
                let connection = &mut self.session.connection;
                return Ok(self.pipeline.push(connection, request, line.number)?);
            }
        }
        self.settle()?;
        self.session.execute(&command)
    }

    /// Waits for outstanding answers and reports refusals.
    fn settle(&mut self) -> Result<(), Failure> {
        self.pipeline.drain(&mut self.session.connection)?;
        let refusals: Vec<_> = self.pipeline.refusals().collect();
        for (number, refusal) in refusals {
            self.complain(number, &Failure::Talk(Error::Refused(refusal)))?;
        }
        Ok(())
    }

    fn complain(&mut self, number: u32, failure: &Failure) -> Result<(), Failure> {
        if self.code == DONE {
            self.code = failure.code().max(FAILED);
        }
        let complaints = self.session.world.complaints();
        writeln!(complaints, "{failure}\nCommand failed {}:{number}", self.name)?;
        Ok(())
    }
}

/// A fault's line counts from the file's first.
fn in_file(mut fault: grammar::SyntaxError, line: &Line) -> grammar::SyntaxError {
    fault.at.line = fault.at.line.saturating_add(line.number - 1);
    fault
}
