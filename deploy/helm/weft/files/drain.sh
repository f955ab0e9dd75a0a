# Ends a gateway's service: bash drain.sh SECONDS [PORT]. Envoy goes on until no request is open, or for SECONDS.
#
# Envoy fails its readiness, so that no new connections come, and asks clients to close those that are there. A
# request that comes meanwhile is served. PORT is that of Envoy's admin pages.
limit=$1 port=${2:-9901}

ask() {
  exec 3<>"/dev/tcp/127.0.0.1/$port" || exit 1
  printf '%s %s HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\ncontent-length: 0\r\n\r\n' "$1" "$2" >&3
  cat <&3
  exec 3>&-
}

count_open() {
  ask GET '/stats?filter=^http\.weft\.downstream_rq_active$' | sed -n 's/.*downstream_rq_active: //p' | tr -d '\r'
}

ask POST /healthcheck/fail >/dev/null
# For some seconds the rest of the cluster may still send new connections here.
quiet=0
while ((SECONDS < limit && quiet < 5)); do
  sleep 1
  if [[ $(count_open) == 0 ]]; then ((quiet += 1)); else quiet=0; fi
done
