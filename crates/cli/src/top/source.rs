//! A thread that asks the gateway again and again, so that a slow answer holds up no key.

use std::{
    io,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use uxfrm_status::gateway::PeerFilter;

use super::sample::{Sample, Sampler};

/// Between two questions to a gateway that is not there.
const RETRY: Duration = Duration::from_secs(1);

/// How many times longer than an answer took nothing is asked behind it.
const RESTS: u32 = 4;

/// What the gateway said, or why it said nothing.
pub(crate) type Reading = Result<Box<Sample>, String>;

/// What is asked, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    /// Only tunnels with this peer.
    pub(crate) peer: Option<PeerFilter>,
    /// From one question to the next.
    pub(crate) interval: Duration,
}

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Source {
    questions: Sender<Question>,
    readings: Receiver<Reading>,
}

impl Source {
    /// Starts to ask.
    ///
    /// # Errors
    /// When the thread can't be started.
    pub(crate) fn start(question: Question) -> io::Result<Self> {
        let (questions, heard) = mpsc::channel();
        let (told, readings) = mpsc::channel();
        let work = move || ask(question, &heard, &told);
        thread::Builder::new().name("uxfrm-top".to_owned()).spawn(work)?;
        Ok(Self { questions, readings })
    }

    /// Asks this from now on, and at once.
    pub(crate) fn ask(&self, question: Question) {
        // A thread that failed is found by `next`.
        let _failed = self.questions.send(question);
    }

    /// What was said since, if anything.
    ///
    /// # Errors
    /// When the thread has failed.
    pub(crate) fn next(&self) -> anyhow::Result<Option<Reading>> {
        match self.readings.try_recv() {
            Ok(reading) => Ok(Some(reading)),
            Err(mpsc::TryRecvError::Empty) => Ok(None),
            Err(mpsc::TryRecvError::Disconnected) => {
                anyhow::bail!("the thread that asks the gateway has failed")
            }
        }
    }
}

fn ask(mut question: Question, heard: &Receiver<Question>, told: &Sender<Reading>) {
    let mut sampler = Sampler::default();
    loop {
        let begin = Instant::now();
        let reading = sampler.read(question.peer);
        // A gateway with very many tunnels is not kept busy all the time.
        let rest = begin.elapsed() * RESTS;
        let wait = if reading.is_ok() { question.interval.max(rest) } else { RETRY };
        let reading = reading.map(Box::new).map_err(|error| format!("{error:#}"));
        if told.send(reading).is_err() {
            return;
        }
        match heard.recv_timeout(wait) {
            Ok(next) => question = heard.try_iter().last().unwrap_or(next),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
