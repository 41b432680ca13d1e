#!/usr/bin/env bash
# One command: build the tools, get the peers, measure all in one run, write the report.
#
#   measure/proxy/run.sh                   everything (about 6 minutes, after the first installation of LiteLLM)
#   QUICK=1 measure/proxy/run.sh           one round of 2 s (about 1.5 minutes)
#   NICE=-15 measure/proxy/run.sh          ahead of other work on a shared machine (as root)
#   measure/proxy/run.sh --targets direct,nginx,tiergate,tiergate-hit          without LiteLLM
#   measure/proxy/run.sh --targets direct,nginx,litellm,portkey,tiergate       with Portkey (needs npm)
#
# Arguments go to `python -m measure.proxy` (--help tells). More settings by environment:
#   TIERGATE_BENCH_CACHE   where tools and peers are kept (default: ${XDG_CACHE_HOME:-~/.cache}/tiergate-bench)
#   LITELLM, PORTKEY       what is installed: a pip requirement (litellm[proxy]), an npm version (1.15.2)
#   PYTHON                 the Python with Tiergate in it (default: .venv/bin/python)
# Needs Linux, two cores, a C compiler, and the Debian packages wrk and nginx-light (installed here if missing, as root).
# Load goes to 127.0.0.1 alone, and ends by itself.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
python=${PYTHON:-.venv/bin/python}
cache=${TIERGATE_BENCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tiergate-bench}
mkdir -p "$cache/peers"

missing=()
command -v wrk >/dev/null || missing+=(wrk)
command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || missing+=(nginx-light)
if [ ${#missing[@]} -gt 0 ]; then
  [ "$(id -u)" = 0 ] || { echo "please install: ${missing[*]}" >&2; exit 2; }
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null
fi

for tool in mock_upstream loadgen; do
  if [ ! -x "$cache/$tool" ] || [ "$here/$tool.c" -nt "$cache/$tool" ]; then
    cc -O2 -o "$cache/$tool" "$here/$tool.c" -lm
  fi
done

arguments=(--tools "$cache" --nice "${NICE:-0}")
[ -z "${QUICK:-}" ] || arguments+=(--quick)

for peer in $("$python" -m measure.proxy "${arguments[@]}" "$@" --peers); do
  case $peer in
    litellm)
      if [ ! -x "$cache/peers/litellm/bin/litellm" ]; then
        echo "installing LiteLLM (some minutes, once)" >&2
        "$python" -m venv "$cache/peers/litellm"
        "$cache/peers/litellm/bin/pip" install --quiet --disable-pip-version-check "${LITELLM:-litellm[proxy]}" ||
          echo "LiteLLM cannot be installed here; it is left out" >&2
      fi ;;
    portkey)
      if [ ! -d "$cache/peers/portkey/node_modules" ]; then
        mkdir -p "$cache/peers/portkey"
        (cd "$cache/peers/portkey" && npm install --silent --no-fund "@portkey-ai/gateway@${PORTKEY:-1.15.2}") ||
          echo "Portkey cannot be installed here; it is left out" >&2
      fi ;;
  esac
done

exec timeout 900 "$python" -m measure.proxy "${arguments[@]}" "$@"
