//! The HTTP interface: agents' WebSocket at `/agent`, JSON under `/api/v1`.

mod agents;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::JsonRejection;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::{StreamExt, stream};
use omnilearn_kernel_host::Kernel;
use omnilearn_mqtt::command::COMMAND_BYTES_MAX;
use omnilearn_wire::JobId;
use omnilearn_wire::limits::{FRAME_BYTES_MAX, KERNEL_BYTES_MAX};
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};

use crate::checkpoint;
use crate::connection::{self, Gate};
use crate::digest;
use crate::job_task::Request as JobRequest;
use crate::limits::{GIVEN_WEIGHTS_BYTES_MAX, JOB_FILE_BYTES_MAX, PAGE_ROWS_MAX, STALL_MAX};
use crate::metered::Peer;
use crate::mqtt::Mqtt;
use crate::plan::{Materials, Plan};
use crate::signing::Signatures;
use crate::view::{
    BrokerView, ErrorBody, Health, JobState, JobView, KernelAccepted, RecordPage, Submission, WeightsAccepted,
};
use crate::weights_store::{self, UploadError, WeightsStore};

/// Length of a piece of a download.
const DOWNLOAD_PIECE: usize = 256 << 10;

/// Bytes of an upload that are gathered before they are written.
const UPLOAD_PIECE: usize = 1 << 20;

/// Buffers of a WebSocket connection; small messages gather here before they go to the operating system.
const SOCKET_BUFFER: usize = 64 << 10;

/// What request handlers share.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) gate: Arc<Gate>,
    pub(crate) weights: WeightsStore,
    pub(crate) jobs: mpsc::Sender<JobRequest>,
    pub(crate) mqtt: Option<Mqtt>,
}

/// An answer that is no success.
struct Refused(StatusCode, String);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.0, Json(ErrorBody { error: self.1 })).into_response()
    }
}

type Answer<T> = Result<T, Refused>;

fn unavailable() -> Refused {
    Refused(StatusCode::SERVICE_UNAVAILABLE, "the hub is shutting down".to_owned())
}

fn internal(error: impl std::fmt::Display) -> Refused {
    tracing::error!(%error, "request failed");
    Refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

impl From<UploadError> for Refused {
    fn from(error: UploadError) -> Refused {
        match error {
            UploadError::TooLong { .. } => Refused(StatusCode::PAYLOAD_TOO_LARGE, error.to_string()),
            UploadError::Weights(_) => Refused(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
            UploadError::Io(_) => internal(error),
        }
    }
}

fn unknown_job(job: JobId) -> Refused {
    Refused(StatusCode::NOT_FOUND, format!("there is no job {job}; `omnilearn-hub status` lists them"))
}

/// Every route.
pub(crate) fn router(api: Api) -> Router {
    let v1 = Router::new()
        .route("/kernels", post(submit_kernel).layer(DefaultBodyLimit::max(KERNEL_BYTES_MAX as usize)))
        .route("/weights", post(submit_weights).layer(DefaultBodyLimit::disable())) // it counts what it reads
        .route("/weights/{digest}", get(find_weights))
        .route("/jobs", get(list_jobs).post(submit_job).layer(DefaultBodyLimit::max(2 * JOB_FILE_BYTES_MAX)))
        .route("/jobs/{job}", get(find_job).delete(stop_job))
        .route("/jobs/{job}/steps", get(records))
        .route("/jobs/{job}/weights", get(weights))
        .route("/agents", get(agents::list))
        .route("/agents/{name}/command", post(agents::command).layer(DefaultBodyLimit::max(COMMAND_BYTES_MAX)))
        .route_layer(axum::middleware::from_fn_with_state(api.clone(), authorize));
    Router::new()
        .route("/agent", get(agent))
        .route("/healthz", get(health))
        .nest("/api/v1", v1)
        .fallback(async || Refused(StatusCode::NOT_FOUND, "no such address; the interface is under /api/v1".to_owned()))
        .with_state(api)
}

/// The route of agents, for those that come over a broker.
pub(crate) fn agent_router(api: Api) -> Router {
    Router::new().route("/agent", get(agent)).with_state(api)
}

/// Lets a request through that shows the token, where one is set.
async fn authorize(State(api): State<Api>, request: Request, next: Next) -> Response {
    let Some(token) = &api.gate.token else { return next.run(request).await };
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if shown.and_then(|value| value.strip_prefix("Bearer ")).is_some_and(|shown| token.accepts(shown)) {
        return next.run(request).await;
    }
    api.gate.counters.requests_unauthorized.fetch_add(1, Ordering::Relaxed);
    let advice =
        "this hub asks for its token: --token-file or OMNILEARN_TOKEN, as `Authorization: Bearer ..`".to_owned();
    Refused(StatusCode::UNAUTHORIZED, advice).into_response()
}

async fn agent(State(api): State<Api>, ConnectInfo(peer): ConnectInfo<Peer>, upgrade: WebSocketUpgrade) -> Response {
    upgrade
        .max_message_size(FRAME_BYTES_MAX)
        .max_frame_size(FRAME_BYTES_MAX)
        .read_buffer_size(SOCKET_BUFFER)
        .write_buffer_size(SOCKET_BUFFER)
        .max_write_buffer_size(SOCKET_BUFFER + 2 * FRAME_BYTES_MAX)
        .on_upgrade(move |socket| connection::serve(api.gate, socket, peer))
}

async fn health(State(api): State<Api>) -> Json<Health> {
    let mut counters = api.gate.counters.by_name();
    counters.insert("records_dropped".to_owned(), api.gate.store.dropped_records());
    let mqtt = api.mqtt.as_ref().map(|mqtt| {
        counters.extend(mqtt.counters().map(|(name, value)| (name.to_owned(), value)));
        BrokerView { broker: mqtt.broker(), connected: mqtt.is_connected() }
    });
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Json(Health { status: "ok".to_owned(), version, key: api.gate.key.public().to_string(), counters, mqtt })
}

async fn submit_kernel(State(api): State<Api>, component: Bytes) -> Answer<(StatusCode, Json<KernelAccepted>)> {
    let kernels = api.gate.kernels.clone();
    let bytes = component.len() as u64;
    let kept = tokio::task::spawn_blocking(move || {
        let kernel =
            Kernel::open(&component).map_err(|error| Refused(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))?;
        kernels.keep(&component, kernel).map_err(internal)
    });
    let digest = kept.await.map_err(|_| unavailable())??;
    Ok((StatusCode::CREATED, Json(KernelAccepted { kernel: digest::to_hex(&digest), bytes })))
}

/// Whether weights are here, so that they need not be sent.
async fn find_weights(State(api): State<Api>, Path(text): Path<String>) -> Answer<Json<WeightsAccepted>> {
    let found = tokio::task::spawn_blocking(move || {
        let weights = digest::from_hex(&text).and_then(|digest| api.weights.open(&digest));
        let weights = weights.ok_or_else(|| missing_weights(&text))?;
        let bytes = std::fs::metadata(&weights.path).map_err(internal)?.len();
        Ok(Json(WeightsAccepted { weights: digest::to_hex(&weights.digest), bytes }))
    });
    found.await.map_err(|_| unavailable())?
}

fn missing_weights(digest: &str) -> Refused {
    Refused(StatusCode::NOT_FOUND, format!("no weights {digest} are here; send them to /api/v1/weights first"))
}

/// Writes weights to disk while they arrive; an upload that ends early leaves nothing.
async fn submit_weights(State(api): State<Api>, request: Request) -> Answer<(StatusCode, Json<WeightsAccepted>)> {
    let length = request.headers().get(header::CONTENT_LENGTH);
    if let Some(length) = length.and_then(|length| length.to_str().ok()?.parse().ok()) {
        weights_store::check_length(length)?;
    }
    let begun = tokio::task::spawn_blocking(move || api.weights.begin(GIVEN_WEIGHTS_BYTES_MAX)).await;
    let mut upload = begun.map_err(|_| unavailable())?.map_err(internal)?;
    let mut body = request.into_body().into_data_stream();
    let mut more = true;
    while more {
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        while bytes < UPLOAD_PIECE {
            let piece = tokio::time::timeout(STALL_MAX, body.next()).await.map_err(|_| {
                let reason = format!("no byte of the weights came in {} s", STALL_MAX.as_secs());
                Refused(StatusCode::REQUEST_TIMEOUT, reason)
            })?;
            let Some(piece) = piece else {
                more = false;
                break;
            };
            let piece = piece.map_err(|error| Refused(StatusCode::BAD_REQUEST, error.to_string()))?;
            bytes += piece.len();
            pieces.push(piece);
        }
        let written = tokio::task::spawn_blocking(move || upload.write(&pieces).map(|()| upload));
        upload = written.await.map_err(|_| unavailable())??;
    }
    let (digest, bytes) = tokio::task::spawn_blocking(move || upload.keep()).await.map_err(|_| unavailable())??;
    Ok((StatusCode::CREATED, Json(WeightsAccepted { weights: digest::to_hex(&digest), bytes })))
}

async fn submit_job(
    State(api): State<Api>,
    submission: Result<Json<Submission>, JsonRejection>,
) -> Answer<(StatusCode, Json<JobView>)> {
    let Json(submission) = submission.map_err(|rejection| Refused(rejection.status(), rejection.body_text()))?;
    let (gate, given_weights) = (Arc::clone(&api.gate), api.weights.clone());
    let planned = tokio::task::spawn_blocking(move || {
        let found = digest::from_hex(&submission.kernel).and_then(|digest| gate.kernels.open(&digest));
        let (kernel, kernel_bytes) = found.ok_or_else(|| {
            let advice = format!("no kernel {} is here; send it to /api/v1/kernels first", submission.kernel);
            Refused(StatusCode::UNPROCESSABLE_ENTITY, advice)
        })?;
        let signatures = Signatures::new(&gate.key, kernel.digest(), submission.signature.as_deref())
            .map_err(|error| Refused(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))?;
        let weights = submission.weights.map(|text| {
            let weights = digest::from_hex(&text).and_then(|digest| given_weights.open(&digest));
            weights.ok_or_else(|| Refused(StatusCode::UNPROCESSABLE_ENTITY, missing_weights(&text).1))
        });
        let weights = weights.transpose()?;
        Plan::new(
            &submission.job_file,
            Materials { kernel: &kernel, kernel_bytes, signatures, weights, library: &gate.library },
        )
        .map_err(|error| Refused(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))
    });
    let plan = Box::new(planned.await.map_err(|_| unavailable())??);
    let submitted = ask(&api, |reply| JobRequest::Submit { plan, reply }).await?;
    let view = submitted.map_err(|full| Refused(StatusCode::SERVICE_UNAVAILABLE, full.to_string()))?;
    Ok((StatusCode::CREATED, Json(view)))
}

/// Asks the job task.
async fn ask<T>(api: &Api, request: impl FnOnce(oneshot::Sender<T>) -> JobRequest) -> Answer<T> {
    let (reply, answer) = oneshot::channel();
    api.jobs.send(request(reply)).await.map_err(|_| unavailable())?;
    answer.await.map_err(|_| unavailable())
}

async fn list_jobs(State(api): State<Api>) -> Answer<Json<Vec<JobView>>> {
    let stored = api.gate.store.jobs().await.map_err(internal)?;
    let live = ask(&api, |reply| JobRequest::Views { reply }).await?;
    let mut views: Vec<JobView> = stored.into_iter().map(|stored| stored.view).collect();
    for view in live {
        match views.iter_mut().find(|stored| stored.id == view.id) {
            Some(stored) => *stored = view,
            None => views.push(view),
        }
    }
    Ok(Json(views))
}

async fn view(api: &Api, job: JobId) -> Answer<JobView> {
    if let Some(view) = ask(api, |reply| JobRequest::View { job, reply }).await? {
        return Ok(view);
    }
    // What the job task no longer knows is on its way to the store or there.
    api.gate.store.flush().await;
    let stored = api.gate.store.find_job(job).await.map_err(internal)?;
    stored.map(|stored| stored.view).ok_or_else(|| unknown_job(job))
}

async fn find_job(State(api): State<Api>, Path(job): Path<u64>) -> Answer<Json<JobView>> {
    view(&api, JobId(job)).await.map(Json)
}

async fn stop_job(State(api): State<Api>, Path(job): Path<u64>) -> Answer<Json<JobView>> {
    let job = JobId(job);
    if let Some(view) = ask(&api, |reply| JobRequest::Stop { job, reply }).await? {
        return Ok(Json(view));
    }
    let view = view(&api, job).await?;
    let already = format!("job {job} is {} already", view.state.as_str());
    Err(Refused(StatusCode::CONFLICT, already))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageQuery {
    #[serde(default)]
    since: u64,
    #[serde(default = "rows_default")]
    limit: u32,
    /// `all`, or `summary` to leave out the steps of single agents.
    kinds: Option<Kinds>,
}

#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kinds {
    #[default]
    All,
    Summary,
}

fn rows_default() -> u32 {
    PAGE_ROWS_MAX
}

async fn records(
    State(api): State<Api>,
    Path(job): Path<u64>,
    Query(query): Query<PageQuery>,
) -> Answer<Json<RecordPage>> {
    let job = JobId(job);
    let rows = query.limit.clamp(1, PAGE_ROWS_MAX);
    let steps = query.kinds.unwrap_or_default() == Kinds::All;
    let page = api.gate.store.page(job, query.since.min(i64::MAX as u64), rows, steps).await.map_err(internal)?;
    if page.next == query.since {
        view(&api, job).await?; // nothing, or no such job
    }
    Ok(Json(page))
}

async fn weights(State(api): State<Api>, Path(job): Path<u64>) -> Answer<Response> {
    let job = JobId(job);
    let present = ask(&api, |reply| JobRequest::Weights { job, reply }).await?;
    let store = api.gate.store.clone();
    let opened = tokio::task::spawn_blocking(move || match present {
        Some(present) => checkpoint::export(&store, job, present).map(Some),
        None => match std::fs::File::open(store.weights(job)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        },
    });
    let Some(file) = opened.await.map_err(|_| unavailable())?.map_err(internal)? else {
        let view = view(&api, job).await?;
        let reason = match view.state {
            JobState::Queued => "it has not begun",
            _ => "none were written before it ended",
        };
        return Err(Refused(StatusCode::CONFLICT, format!("job {job} has no weights: {reason}")));
    };
    let length = file.metadata().map_err(internal)?.len();
    let pieces = stream::unfold(Some(file), |file| async move {
        let mut file = file?;
        let read = tokio::task::spawn_blocking(move || {
            let mut piece = Vec::with_capacity(DOWNLOAD_PIECE);
            let read =
                std::io::Read::read_to_end(&mut std::io::Read::take(&mut file, DOWNLOAD_PIECE as u64), &mut piece);
            read.map(|_| (piece, file))
        });
        match read.await.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok((piece, _)) if piece.is_empty() => None,
            Ok((piece, file)) => Some((Ok(Bytes::from(piece)), Some(file))),
            Err(error) => Some((Err(error), None)),
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, length.to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"job-{job}.safetensors\"")),
    ];
    Ok((headers, Body::from_stream(pieces)).into_response())
}
