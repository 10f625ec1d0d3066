// One benchmark run: its two charts.
import { secondsChart, sweepCharts } from "./charts.js";

const data = JSON.parse(document.getElementById("sweep-data").textContent);
sweepCharts(data);
if (document.getElementById("live")) secondsChart(data.seconds, data.practice);
