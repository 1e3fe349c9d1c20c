//! The user's side of the HTTP interface. Calls block; they are for command lines and tools, not for async tasks.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::time::Duration;

use omnilearn_mqtt::command::Command;
use serde::de::DeserializeOwned;
use ureq::AsSendBody;

use crate::digest;
use crate::job_file::{JobFile, JobFileError};
use crate::limits::{GIVEN_WEIGHTS_BYTES_MAX, SELF_TEST_WAIT};
use crate::signing;
use crate::view::{AgentView, ErrorBody, Health, JobView, KernelAccepted, RecordPage, Submission, WeightsAccepted};

/// Time for a connection to the hub.
const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// Time for an answer; a large model's weights may take this long to begin.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No hub there.
    #[error("cannot reach a hub at {hub}: {cause}; start one with `omnilearn-hub serve`, or name another with --hub")]
    Unreachable {
        /// Its address.
        hub: String,
        /// What happened.
        cause: Box<ureq::Error>,
    },
    /// The hub said no.
    #[error("{reason}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// The hub's reason.
        reason: String,
    },
    /// The answer is not a hub's.
    #[error("the answer of {hub} is not a hub's: {cause}")]
    Answer {
        /// Its address.
        hub: String,
        /// What is wrong.
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The job file.
    #[error("{}", path.display())]
    JobFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        cause: JobFileError,
    },
    /// More weights than a hub takes.
    #[error("{} has {bytes} bytes, at most {GIVEN_WEIGHTS_BYTES_MAX} are taken as weights", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// A file on this machine.
    #[error("{what} {}", path.display())]
    File {
        /// What for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        cause: std::io::Error,
    },
}

/// A name as a part of an address.
fn in_path(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let encode = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(encode).collect()
}

/// A hub to talk to.
#[derive(Clone)]
pub struct HubClient {
    hub: String,
    authorization: Option<String>,
    agent: ureq::Agent,
}

impl HubClient {
    /// A client of the hub at an address such as `http://127.0.0.1:7700`.
    pub fn new(hub: &str, token: Option<&str>) -> HubClient {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(CONNECT_WAIT))
            .timeout_recv_response(Some(ANSWER_WAIT))
            .proxy(None)
            .build();
        HubClient {
            hub: hub.trim_end_matches('/').to_owned(),
            authorization: token.map(|token| format!("Bearer {}", token.trim())),
            agent: config.into(),
        }
    }

    fn address(&self, path: &str) -> String {
        format!("{}{path}", self.hub)
    }

    fn checked(
        &self,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<ureq::Body, ClientError> {
        let answer =
            answer.map_err(|cause| ClientError::Unreachable { hub: self.hub.clone(), cause: Box::new(cause) })?;
        let status = answer.status();
        let mut body = answer.into_body();
        if status.is_success() {
            return Ok(body);
        }
        let text = body.read_to_string().unwrap_or_default();
        let reason = serde_json::from_str::<ErrorBody>(&text).map(|body| body.error);
        let reason = reason.unwrap_or_else(|_| format!("{} answers {status}: {}", self.hub, text.trim()));
        Err(ClientError::Refused { status: status.as_u16(), reason })
    }

    fn parsed<T: DeserializeOwned>(&self, mut body: ureq::Body) -> Result<T, ClientError> {
        let wrong =
            |cause: Box<dyn std::error::Error + Send + Sync>| ClientError::Answer { hub: self.hub.clone(), cause };
        let text = body.with_config().limit(1 << 30).read_to_vec().map_err(|cause| wrong(Box::new(cause)))?;
        serde_json::from_slice(&text).map_err(|cause| wrong(Box::new(cause)))
    }

    fn get_body(&self, path: &str) -> Result<ureq::Body, ClientError> {
        let mut request = self.agent.get(self.address(path));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        self.checked(request.call())
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.get_body(path).and_then(|body| self.parsed(body))
    }

    fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        content_type: &str,
        body: impl AsSendBody,
    ) -> Result<T, ClientError> {
        let mut request = self.agent.post(self.address(path)).header("content-type", content_type);
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        self.checked(request.send(body)).and_then(|body| self.parsed(body))
    }

    /// Whether the hub is there, and its counters.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn health(&self) -> Result<Health, ClientError> {
        self.get("/healthz")
    }

    /// Submits a job file with the kernel and the weights that it names, relative to the file, and with the signature file
    /// that lies beside the kernel, if there is one.
    ///
    /// # Errors
    /// [`ClientError`]: the file or the kernel cannot be read, or the hub's reason.
    pub fn submit_file(&self, path: &Path) -> Result<JobView, ClientError> {
        let read = |what, path: &Path| {
            std::fs::read(path).map_err(|cause| ClientError::File { what, path: path.to_owned(), cause })
        };
        let text = String::from_utf8_lossy(&read("cannot read the job file", path)?).into_owned();
        let job = JobFile::parse(&text).map_err(|cause| ClientError::JobFile { path: path.to_owned(), cause })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let kernel = folder.join(&job.kernel.path);
        let component = read("cannot read the kernel ([kernel] path; `cargo xtask kernels` builds them)", &kernel)?;
        let signature = signing::read_beside(&kernel).map_err(|cause| ClientError::File {
            what: "cannot read the kernel's signature",
            path: signing::path_beside(&kernel),
            cause,
        })?;
        let weights = job.kernel.weights.map(|weights| self.send_weights(&folder.join(weights))).transpose()?;
        self.submit(&text, &component, signature, weights)
    }

    /// Sends weights for a job to begin with, a safetensors file, unless the hub has them. Returns their digest, in
    /// hexadecimal. The file is never in memory as a whole.
    ///
    /// # Errors
    /// [`ClientError`]: the file cannot be read or is too long, or the hub's reason.
    pub fn send_weights(&self, path: &Path) -> Result<String, ClientError> {
        let unreadable = |cause| ClientError::File {
            what: "cannot read the weights ([kernel] weights)",
            path: path.to_owned(),
            cause,
        };
        let mut file = File::open(path).map_err(unreadable)?;
        let bytes = file.metadata().map_err(unreadable)?.len();
        if bytes > GIVEN_WEIGHTS_BYTES_MAX {
            return Err(ClientError::TooLong { path: path.to_owned(), bytes });
        }
        let digest = digest::to_hex(&omnilearn_datasets::digest_of(&file).map_err(unreadable)?);
        let known: Result<WeightsAccepted, ClientError> = self.get(&format!("/api/v1/weights/{digest}"));
        let accepted = match known {
            Err(ClientError::Refused { status: 404, .. }) => {
                file.rewind().map_err(unreadable)?;
                self.post("/api/v1/weights", "application/octet-stream", &file)?
            }
            known => known?,
        };
        Ok(accepted.weights)
    }

    /// Submits a job file's text, a kernel's bytes, the text of its signature by its author, if it has one, and the digest
    /// of the weights that it begins with, if the job file names any; see [`HubClient::send_weights`].
    ///
    /// # Errors
    /// [`ClientError`] with the hub's reason.
    pub fn submit(
        &self,
        job_file: &str,
        component: &[u8],
        signature: Option<String>,
        weights: Option<String>,
    ) -> Result<JobView, ClientError> {
        let accepted: KernelAccepted = self.post("/api/v1/kernels", "application/wasm", component)?;
        let submission = Submission { job_file: job_file.to_owned(), kernel: accepted.kernel, signature, weights };
        let submission = serde_json::to_vec(&submission).expect("a submission is texts");
        self.post("/api/v1/jobs", "application/json", &submission[..])
    }

    /// Every job, oldest first.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn jobs(&self) -> Result<Vec<JobView>, ClientError> {
        self.get("/api/v1/jobs")
    }

    /// One job.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn job(&self, job: u64) -> Result<JobView, ClientError> {
        self.get(&format!("/api/v1/jobs/{job}"))
    }

    /// Ends a job.
    ///
    /// # Errors
    /// [`ClientError`], also where it has ended already.
    pub fn stop(&self, job: u64) -> Result<JobView, ClientError> {
        let mut request = self.agent.delete(self.address(&format!("/api/v1/jobs/{job}")));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        self.checked(request.call()).and_then(|body| self.parsed(body))
    }

    /// Every agent that the hub knows.
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn agents(&self) -> Result<Vec<AgentView>, ClientError> {
        self.get("/api/v1/agents")
    }

    /// Has an agent do something over the broker; what it returns.
    ///
    /// # Errors
    /// [`ClientError`] with the hub's reason or the agent's.
    pub fn command(&self, agent: &str, command: &Command) -> Result<serde_json::Value, ClientError> {
        let body = serde_json::to_vec(command).expect("a command has string keys only");
        let path = format!("/api/v1/agents/{}/command", in_path(agent));
        let mut request = self.agent.post(self.address(&path)).header("content-type", "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let request = request.config().timeout_recv_response(Some(SELF_TEST_WAIT + CONNECT_WAIT)).build();
        self.checked(request.send(&body[..])).and_then(|body| self.parsed(body))
    }

    /// A job's records after number `since`; go on with [`RecordPage::next`] while there are [`RecordPage::more`].
    ///
    /// # Errors
    /// [`ClientError`]
    pub fn records(&self, job: u64, since: u64) -> Result<RecordPage, ClientError> {
        self.get(&format!("/api/v1/jobs/{job}/steps?since={since}"))
    }

    /// A job's weights, in safetensors.
    ///
    /// # Errors
    /// [`ClientError`], also where there are none yet.
    pub fn weights(&self, job: u64) -> Result<impl Read, ClientError> {
        let body = self.get_body(&format!("/api/v1/jobs/{job}/weights"))?;
        Ok(body.into_with_config().limit(u64::MAX).reader())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_part_of_a_path() {
        assert_eq!(in_path("pi-4.local"), "pi-4.local");
        assert_eq!(in_path("a/b c?ü"), "a%2Fb%20c%3F%C3%BC");
    }
}
