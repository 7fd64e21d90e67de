//! One endpoint of etcd: calls with a limit of time, TLS, users.

use std::time::Duration;

use http::uri::PathAndQuery;
use prost::Message;
use tokio::time::timeout;
use tonic::{
    Code, Request, Status, Streaming,
    client::Grpc,
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};
use tonic_prost::ProstCodec;
use uxfrm_fleet::store::{KeyChange, StoreRevision, StoreTransaction, Stored};

use super::{
    history::{StoreHistory, WentBack},
    mapping::{self, EtcdLease},
    messages::{
        AuthenticateRequest, AuthenticateResponse, LeaseGrantRequest, LeaseGrantResponse,
        LeaseKeepAliveResponse, LeaseRequest, LeaseRevokeResponse, RangeRequest, RangeResponse,
        ResponseHeader, StatusRequest, StatusResponse, TransactionResponse, WatchResponse,
    },
};
use crate::config::EtcdConfig;

/// How long etcd may take for an answer.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// How long a command waits for one.
const COMMAND_PATIENCE: Duration = Duration::from_secs(5);
/// How often a connection is tried that says nothing.
const PING_EVERY: Duration = Duration::from_secs(1);
/// Keys in one answer.
const PAGE: i64 = 1000;
/// The largest answer, in bytes.
const LARGEST: usize = 256 << 20;

/// A connection to one endpoint. Copies are the same one.
#[derive(Clone)]
pub struct EtcdClient {
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    history: StoreHistory,
    patience: Duration,
    endpoint: String,
}

/// Why etcd did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// The configuration can't be right.
    #[error("{0}")]
    Config(String),
    /// Nobody answers, or the connection broke.
    #[error("etcd at {endpoint} does not answer: {why}")]
    Unreachable {
        /// Which.
        endpoint: String,
        /// Why.
        why: String,
    },
    /// It refuses.
    #[error("etcd at {endpoint}: {why}")]
    Refused {
        /// Which.
        endpoint: String,
        /// In its words.
        why: String,
        /// gRPC's code.
        code: Code,
    },
    /// It must not be believed.
    #[error("etcd at {endpoint} is not believed: {why}")]
    WentBack {
        /// Which.
        endpoint: String,
        /// Why.
        why: WentBack,
    },
}

/// Changes of keys, as they come.
#[derive(Debug)]
pub struct ChangeStream<'a> {
    client: &'a EtcdClient,
    changes: Streaming<WatchResponse>,
}

impl ChangeStream<'_> {
    /// What came next.
    ///
    /// # Errors
    /// Where the connection ended, or what came between is not to be had any more.
    pub async fn next(&mut self) -> Result<Vec<KeyChange>, EtcdError> {
        let came = self.changes.message().await.map_err(|status| self.client.refused(&status))?;
        let came = came.filter(|came| !came.canceled).ok_or_else(|| self.client.ended())?;
        self.client.check(came.header, StoreRevision(0))?;
        Ok(came.events.into_iter().filter_map(mapping::change).map(|(_, change)| change).collect())
    }
}

/// How an endpoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdHealth {
    /// Its release.
    pub version: String,
    /// Whether it knows a leader.
    pub has_leader: bool,
    /// The bytes of its database.
    pub size: u64,
    /// What it complains of.
    pub errors: Vec<String>,
}

/// An answer that says of which cluster it is, and when.
trait Headed {
    fn header(&self) -> Option<ResponseHeader>;
}

macro_rules! headed {
    ($($answer:ty),*) => {
        $(impl Headed for $answer {
            fn header(&self) -> Option<ResponseHeader> {
                self.header
            }
        })*
    };
}

headed!(RangeResponse, TransactionResponse, LeaseGrantResponse, LeaseRevokeResponse);

impl EtcdClient {
    /// Connects to one of the endpoints, as the user that the configuration names.
    ///
    /// # Errors
    /// Where it does not answer, or refuses the user.
    pub async fn connect(
        config: &EtcdConfig,
        endpoint: &str,
        history: StoreHistory,
    ) -> Result<Self, EtcdError> {
        let address = address(config, endpoint)?;
        let connecting = timeout(PATIENCE, address.connect());
        let unreachable =
            |why: String| EtcdError::Unreachable { endpoint: endpoint.to_owned(), why };
        let channel = connecting.await.map_err(|_late| unreachable(late(PATIENCE)))?;
        let channel = channel.map_err(|error| unreachable(causes(&error)))?;
        let mut client = Self {
            channel,
            token: None,
            history,
            patience: PATIENCE,
            endpoint: endpoint.to_owned(),
        };
        client.log_in(config).await?;
        Ok(client)
    }

    /// Connects to whichever endpoint answers first, in their order; for commands.
    ///
    /// # Errors
    /// That of the last one, where none does.
    pub async fn connect_any(
        config: &EtcdConfig,
        history: &StoreHistory,
    ) -> Result<Self, EtcdError> {
        let mut failed = EtcdError::Config("[etcd] endpoints: there are none".to_owned());
        for endpoint in &config.endpoints {
            match Self::connect(config, endpoint, history.clone()).await {
                Ok(client) => return Ok(Self { patience: COMMAND_PATIENCE, ..client }),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// The endpoint.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    async fn log_in(&mut self, config: &EtcdConfig) -> Result<(), EtcdError> {
        let Some((name, password)) = config.credentials().map_err(EtcdError::Config)? else {
            return Ok(());
        };
        let request = AuthenticateRequest { name, password: password.to_string() };
        let answer: AuthenticateResponse =
            self.call("/etcdserverpb.Auth/Authenticate", request).await?;
        let token = answer.token.parse();
        self.token = Some(token.map_err(|_| EtcdError::Refused {
            endpoint: self.endpoint.clone(),
            why: "its token is no text".to_owned(),
            code: Code::Internal,
        })?);
        Ok(())
    }

    /// What one key holds, and the revision of the answer.
    ///
    /// # Errors
    /// Where etcd does not answer, or is not to be believed.
    pub async fn read(&self, key: &str) -> Result<(StoreRevision, Option<Stored>), EtcdError> {
        let (revision, answer) = self.range(mapping::read(key)).await?;
        let stored = answer.kvs.into_iter().next().and_then(mapping::stored);
        Ok((revision, stored.map(|(_, stored)| stored)))
    }

    /// What all keys hold that begin so, as of one revision.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_all(
        &self,
        prefix: &str,
    ) -> Result<(StoreRevision, Vec<(String, Stored)>), EtcdError> {
        self.pages(prefix, |request| request).await
    }

    /// The keys that begin so; values are empty.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn keys(&self, prefix: &str) -> Result<Vec<String>, EtcdError> {
        let keys_only = |request| RangeRequest { keys_only: true, ..request };
        let (_, records) = self.pages(prefix, keys_only).await?;
        Ok(records.into_iter().map(|(key, _)| key).collect())
    }

    /// The first key at or behind `from` that begins with `prefix`.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn next_key(&self, prefix: &str, from: &str) -> Result<Option<String>, EtcdError> {
        let page = mapping::read_page(prefix, from.as_bytes().to_vec(), 1, StoreRevision(0));
        let (_, answer) = self.range(RangeRequest { keys_only: true, ..page }).await?;
        Ok(answer.kvs.into_iter().next().and_then(mapping::stored).map(|(key, _)| key))
    }

    async fn pages(
        &self,
        prefix: &str,
        with: impl Fn(RangeRequest) -> RangeRequest,
    ) -> Result<(StoreRevision, Vec<(String, Stored)>), EtcdError> {
        let (mut revision, mut records) = (StoreRevision(0), Vec::new());
        let mut from = prefix.as_bytes().to_vec();
        loop {
            let request = with(mapping::read_page(prefix, from, PAGE, revision));
            let (at, answer) = self.range(request).await?;
            if revision == StoreRevision(0) {
                revision = at;
            }
            let last = answer.kvs.last().map(|kv| kv.key.clone()).unwrap_or_default();
            records.extend(answer.kvs.into_iter().filter_map(mapping::stored));
            if !answer.more || last.is_empty() {
                return Ok((revision, records));
            }
            // The first key behind it.
            from = [&last[..], &[0]].concat();
        }
    }

    async fn range(
        &self,
        request: RangeRequest,
    ) -> Result<(StoreRevision, RangeResponse), EtcdError> {
        self.believed("/etcdserverpb.KV/Range", request).await
    }

    /// Does a transaction that has nothing leased; the revision where it was done.
    ///
    /// # Errors
    /// Where nobody knows whether it was done.
    pub async fn commit(
        &self,
        transaction: &StoreTransaction,
    ) -> Result<Option<StoreRevision>, EtcdError> {
        self.commit_leased(transaction, None).await
    }

    pub(super) async fn commit_leased(
        &self,
        transaction: &StoreTransaction,
        lease: Option<EtcdLease>,
    ) -> Result<Option<StoreRevision>, EtcdError> {
        let Some(request) = mapping::transaction(transaction, lease) else { return Ok(None) };
        let answer = self.believed::<_, TransactionResponse>("/etcdserverpb.KV/Txn", request).await;
        match answer {
            Ok((revision, answer)) => Ok(answer.succeeded.then_some(revision)),
            // The lease ended: nothing was done.
            Err(EtcdError::Refused { code: Code::NotFound, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn grant(&self, seconds: i64) -> Result<EtcdLease, EtcdError> {
        let request = LeaseGrantRequest { ttl: seconds, id: 0 };
        let (_, answer): (_, LeaseGrantResponse) =
            self.believed("/etcdserverpb.Lease/LeaseGrant", request).await?;
        if !answer.error.is_empty() || answer.id == 0 || answer.ttl < seconds {
            let why = format!("it granted no lease of {seconds} s: {}", answer.error);
            let endpoint = self.endpoint.clone();
            return Err(EtcdError::Refused { endpoint, why, code: Code::Internal });
        }
        Ok(EtcdLease(answer.id))
    }

    /// Lets a lease live on; whether it still lived.
    pub(super) async fn keep_alive(&self, lease: EtcdLease) -> Result<bool, EtcdError> {
        let request = tokio_stream::once(LeaseRequest { id: lease.0 });
        let asking = async {
            let mut answers: Streaming<LeaseKeepAliveResponse> =
                self.stream("/etcdserverpb.Lease/LeaseKeepAlive", request).await?;
            answers.message().await
        };
        let answer = self.in_time(asking).await?.ok_or_else(|| self.ended())?;
        // Its revision may be older than one of a transaction: it goes no way through consensus.
        self.check(answer.header, StoreRevision(0))?;
        Ok(answer.ttl > 0)
    }

    /// Ends a lease, and all that is leased under it.
    pub(super) async fn revoke(&self, lease: EtcdLease) -> Result<(), EtcdError> {
        let request = LeaseRequest { id: lease.0 };
        self.believed::<_, LeaseRevokeResponse>("/etcdserverpb.Lease/LeaseRevoke", request)
            .await
            .map(drop)
    }

    /// All changes of keys that begin so, after a revision.
    pub(crate) async fn watch(
        &self,
        prefix: &str,
        after: StoreRevision,
    ) -> Result<Streaming<WatchResponse>, EtcdError> {
        // The request's stream stays open: its end would end the watch.
        let create = mapping::watch(prefix, after);
        let requests =
            tokio_stream::StreamExt::chain(tokio_stream::once(create), tokio_stream::pending());
        self.in_time(self.stream("/etcdserverpb.Watch/Watch", requests)).await
    }

    /// The same, a word at a time; for commands.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn follow(
        &self,
        prefix: &str,
        after: StoreRevision,
    ) -> Result<ChangeStream<'_>, EtcdError> {
        Ok(ChangeStream { client: self, changes: self.watch(prefix, after).await? })
    }

    /// How the endpoint is.
    ///
    /// # Errors
    /// Where it does not answer.
    pub async fn health(&self) -> Result<EtcdHealth, EtcdError> {
        let answer: StatusResponse =
            self.call("/etcdserverpb.Maintenance/Status", StatusRequest {}).await?;
        Ok(EtcdHealth {
            version: answer.version,
            has_leader: answer.leader != 0,
            size: u64::try_from(answer.db_size).unwrap_or_default(),
            errors: answer.errors,
        })
    }

    /// Asks, and takes an answer that is believed; its revision.
    async fn believed<Q, A>(
        &self,
        path: &'static str,
        message: Q,
    ) -> Result<(StoreRevision, A), EtcdError>
    where
        Q: Message + 'static,
        A: Message + Default + Headed + 'static,
    {
        let known = self.history.revision();
        let answer: A = self.call(path, message).await?;
        let revision = self.check(answer.header(), known)?;
        Ok((revision, answer))
    }

    /// Whether an answer is of the cluster that was seen, and not of its past.
    pub(super) fn check(
        &self,
        header: Option<ResponseHeader>,
        known: StoreRevision,
    ) -> Result<StoreRevision, EtcdError> {
        let header = header.unwrap_or_default();
        let revision = mapping::revision(header.revision);
        let accepted = self.history.accept(header.cluster_id, revision, known);
        let endpoint = || self.endpoint.clone();
        accepted.map_err(|why| EtcdError::WentBack { endpoint: endpoint(), why })?;
        Ok(revision)
    }

    async fn call<Q, A>(&self, path: &'static str, message: Q) -> Result<A, EtcdError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc();
        let request = self.request(message);
        let call = async {
            grpc.ready().await.map_err(|error| Status::unavailable(causes(&error)))?;
            let path = PathAndQuery::from_static(path);
            let answered = grpc.unary(request, path, ProstCodec::<Q, A>::default()).await?;
            Ok(answered.into_inner())
        };
        self.in_time(call).await
    }

    async fn stream<S, Q, A>(&self, path: &'static str, requests: S) -> Result<Streaming<A>, Status>
    where
        S: tokio_stream::Stream<Item = Q> + Send + 'static,
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = self.grpc();
        let mut request = self.request(requests);
        // An endpoint that is cut off from the others says so.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        grpc.ready().await.map_err(|error| Status::unavailable(causes(&error)))?;
        let path = PathAndQuery::from_static(path);
        let answered = grpc.streaming(request, path, ProstCodec::<Q, A>::default()).await?;
        Ok(answered.into_inner())
    }

    fn grpc(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone()).max_decoding_message_size(LARGEST)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            // Not sensitive to HPACK alone: nothing prints metadata.
            let mut token = token.clone();
            token.set_sensitive(true);
            request.metadata_mut().insert("authorization", token);
        }
        request
    }

    async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, EtcdError> {
        let endpoint = || self.endpoint.clone();
        match timeout(self.patience, call).await {
            Ok(answered) => answered.map_err(|status| self.refused(&status)),
            Err(_late) => {
                Err(EtcdError::Unreachable { endpoint: endpoint(), why: late(self.patience) })
            }
        }
    }

    pub(super) fn refused(&self, status: &Status) -> EtcdError {
        let (endpoint, why) = (self.endpoint.clone(), status.message().to_owned());
        let code = status.code();
        let is_gone = [Code::Unavailable, Code::Cancelled, Code::DeadlineExceeded, Code::Unknown];
        if is_gone.contains(&code) {
            EtcdError::Unreachable { endpoint, why }
        } else {
            EtcdError::Refused { endpoint, why, code }
        }
    }

    pub(super) fn ended(&self) -> EtcdError {
        let why = "it ended the connection".to_owned();
        EtcdError::Unreachable { endpoint: self.endpoint.clone(), why }
    }
}

fn address(config: &EtcdConfig, endpoint: &str) -> Result<Endpoint, EtcdError> {
    let wrong = |why: &dyn std::fmt::Display| {
        EtcdError::Config(format!("[etcd] endpoints: `{endpoint}`: {why}"))
    };
    let address = Endpoint::from_shared(endpoint.to_owned()).map_err(|error| wrong(&error))?;
    let address = address
        .connect_timeout(PATIENCE)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PATIENCE)
        .keep_alive_while_idle(true);
    match tls(config, endpoint)? {
        Some(tls) => address.tls_config(tls).map_err(|error| wrong(&causes(&error))),
        None => Ok(address),
    }
}

fn tls(config: &EtcdConfig, endpoint: &str) -> Result<Option<ClientTlsConfig>, EtcdError> {
    if !endpoint.starts_with("https://") {
        return Ok(None);
    }
    let files = config.tls_files().map_err(EtcdError::Config)?;
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&files.ca));
    Ok(Some(match files.identity {
        Some((certificate, key)) => tls.identity(Identity::from_pem(certificate, &*key)),
        None => tls,
    }))
}

fn late(patience: Duration) -> String {
    format!("nothing came for {} s", patience.as_secs())
}

/// An error with its causes: tonic's own says "transport error" alone.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

impl std::fmt::Debug for EtcdClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdClient").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}
