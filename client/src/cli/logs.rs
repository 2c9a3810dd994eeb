//! Logs: text or JSON, to standard error or to a file, levels per module.

use std::fs::OpenOptions;
use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// How to log.
#[derive(Args, Clone, Debug, Default)]
pub struct LogArgs {
    /// Levels, for all modules or for one: `info`, or `warn,mortar_xlators::replicate=debug`
    #[arg(long, value_name = "LEVELS", env = "MORTAR_LOG", help_heading = "Logs")]
    pub log: Option<String>,
    /// A line of text or of JSON per event
    #[arg(long, value_name = "FORMAT", default_value = "text", help_heading = "Logs")]
    pub log_format: LogFormat,
    /// Append to this file instead of writing to standard error
    #[arg(long, value_name = "FILE", help_heading = "Logs")]
    pub log_file: Option<PathBuf>,
}

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

impl LogArgs {
    /// Begin to log, at `level` where the arguments say nothing.
    pub fn start(&self, level: &str) -> Result<()> {
        let levels = self.log.as_deref().unwrap_or(level);
        let filter = EnvFilter::try_new(levels)
            .with_context(|| format!("`--log {levels}`: give a level or MODULE=LEVEL, separated by commas"))?;
        match &self.log_file {
            None => self.write_to(filter, std::io::stderr, std::io::stderr().is_terminal()),
            Some(path) => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                let file = file.with_context(|| format!("cannot write log file {}", path.display()))?;
                self.write_to(filter, std::sync::Arc::new(file), false);
            }
        }
        Ok(())
    }

    fn write_to<W>(&self, filter: EnvFilter, writer: W, colours: bool)
    where
        W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
    {
        let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(colours);
        // A second start in one process (tests do that) keeps the first subscriber.
        match self.log_format {
            LogFormat::Text => lines.try_init().ok(),
            LogFormat::Json => lines.json().flatten_event(true).try_init().ok(),
        };
    }

    /// The same as arguments for another process, except for the file.
    pub fn to_arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        if let Some(levels) = &self.log {
            arguments.extend(["--log".to_owned(), levels.clone()]);
        }
        if self.log_format == LogFormat::Json {
            arguments.extend(["--log-format".to_owned(), "json".to_owned()]);
        }
        arguments
    }
}
