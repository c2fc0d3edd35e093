#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a compiler command, writes its output with the ptxas report of registers and spills to
# $REPORTS/<object>.ptxas, and prints everything else.
object=
previous=
for argument in "$@"; do
  if [ "$previous" = -o ]; then object=$argument; fi
  previous=$argument
done
report=$REPORTS/$(echo "$object" | tr / _).ptxas
"$@" > "$report" 2>&1
status=$?
grep -vE 'ptxas info|bytes stack frame|bytes gmem' "$report"
if [ $status -ne 0 ]; then rm -f "$report"; fi
exit $status
